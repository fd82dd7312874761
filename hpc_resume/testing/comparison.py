"""Two runs, step by step: what differs, in words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hpc_resume.journal.folder import RunFolder
from hpc_resume.journal.metrics import read_rows
from hpc_resume.journal.reader import read_journal

Row = dict[str, Any]

_WORDS = {
    "samples": "samples",
    "lr": "learning rate",
    "loss": "loss",
    "grad_norm": "gradient norm",
    "weights": "weights",
    "masters": "the optimizer's fp32 weights",
    "optimizer": "optimizer state",
    "random.python": "Python's random generator",
    "random.numpy": "numpy's random generator",
    "random.torch": "torch's random generator",
    "random.cuda": "the GPU's random generator",
}
"""What is compared, wherever both rows have it."""

_SHOWN = ("samples", "lr", "loss", "grad_norm")
"""What says something to people; the rest is digests."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """What came of comparing two runs."""

    differences: list[str]
    """In words: of each attempt and rank the first step that differs."""
    rows: int
    """How many states of a rank were compared: one for each step, each time that it was trained, and for each load."""


def compare_runs(a: RunFolder, b: RunFolder) -> list[str]:
    """Return how `b` differs from the undisturbed run `a`, in words; nothing if it is the same to the last bit.

    Every step that `b` trained on its way counts, also those that it trained again. Both must have been trained with
    `training.record_state`.
    """
    return compare(a, b).differences


def compare(a: RunFolder, b: RunFolder) -> Comparison:
    """Compare as `compare_runs` does, and count."""
    ranks, others = _ranks(a), _ranks(b)
    for run, found in ((a, ranks), (b, others)):
        if not found:
            return Comparison(
                differences=[f"{run.path} holds no record of its states: set training.record_state"], rows=0
            )
    differences = [] if ranks == others else [f"ranks {others} instead of {ranks}"]
    rows = 0
    for rank in ranks:
        states = _states(b, rank)
        differences += _differences(_states(a, rank), states, f"rank {rank}")
        rows += sum(map(len, states.values()))
    differences += _differences(_metrics(a), _metrics(b), "all ranks")
    return Comparison(differences=differences + _results(a, b), rows=rows)


def _differences(a: dict[int, list[Row]], b: dict[int, list[Row]], who: str) -> list[str]:
    """Compare the rows of all attempts of one kind."""
    expected = {row["step"]: row for rows in a.values() for row in rows}
    found = []
    for attempt, rows in b.items():
        bad = [(row["step"], text) for row in rows if (text := _difference(expected.get(row["step"]), row))]
        if bad:
            step, text = bad[0]
            more = f"; so do {len(bad) - 1} later rows" if len(bad) > 1 else ""
            found.append(f"attempt {attempt}, {who}, step {step} differs: {text}{more}")
    trained = {row["step"] for rows in b.values() for row in rows if not row.get("loaded")}
    missing = sorted(step for step, row in expected.items() if step not in trained and not row.get("loaded"))
    if missing:
        found.append(f"{who}: step {', '.join(map(str, missing))} was never trained")
    return found


def _difference(expected: Row | None, row: Row) -> str:
    if expected is None:
        return "the undisturbed run has no such step"
    before, now = _flat(expected), _flat(row)
    # `repr`, because a NaN that is a NaN again is no difference.
    names = [name for name in _WORDS if name in before and name in now and repr(before[name]) != repr(now[name])]
    texts = [_WORDS[name] + (f" {now[name]} instead of {before[name]}" if name in _SHOWN else "") for name in names]
    return ("as it was loaded: " if texts and row.get("loaded") else "") + ", ".join(texts)


def _flat(row: Row) -> Row:
    return row | {f"random.{name}": value for name, value in row.get("random", {}).items()}


def _results(a: RunFolder, b: RunFolder) -> list[str]:
    before, now = read_journal(a).history.finished, read_journal(b).history.finished
    unfinished = [f"{run.path} did not finish" for run, end in ((a, before), (b, now)) if end is None]
    if before is None or now is None or before.weights_digest == now.weights_digest:
        return unfinished
    return ["the finished weights differ"]


def _states(run: RunFolder, rank: int) -> dict[int, list[Row]]:
    return {attempt: read_rows(run.trace(attempt, rank)) for attempt in _attempts(run)}


def _metrics(run: RunFolder) -> dict[int, list[Row]]:
    """Return what is global, which rank 0 wrote down."""
    return {attempt: [row for row in read_rows(run.metrics(attempt)) if "step" in row] for attempt in _attempts(run)}


def _attempts(run: RunFolder) -> list[int]:
    return sorted({attempt for attempt, _ in _traces(run)})


def _ranks(run: RunFolder) -> list[int]:
    return sorted({rank for _, rank in _traces(run)})


def _traces(run: RunFolder) -> Iterator[tuple[int, int]]:
    """Yield attempt and rank of every record of states."""
    for path in run.trace(0, 0).parent.glob("attempt-*.trace-*.jsonl"):
        if match := re.fullmatch(r"attempt-(\d+)\.trace-(\d+)\.jsonl", path.name):
            yield int(match[1]), int(match[2])
