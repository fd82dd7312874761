"""What the verbs print: tables for people on a terminal, JSON for programs."""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hpc_resume.config.schema import RunConfig
from hpc_resume.config.sweep import describe, expand
from hpc_resume.journal.folder import SubmissionFolder
from hpc_resume.reporting.report import Report
from hpc_resume.reporting.summary import RunSummary


def write_json(value: Any) -> None:
    """Print one JSON document; a number that is not finite becomes null, since JSON has none."""
    sys.stdout.write(json.dumps(_finite(value), indent=1, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


_WIDE = 100_000
"""Columns of an output that is no terminal: a program that reads a table must not find it folded."""


def _say(text: str | Text) -> None:
    """Print one line; nothing in it is markup, since paths and messages may hold brackets."""
    Console(highlight=False, soft_wrap=True).print(text, markup=False)


def _write_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Print a table; on a terminal the last column is folded into the width that is there."""
    table = Table(box=None, pad_edge=False)
    for name in head:
        table.add_column(name, no_wrap=name != head[-1])
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    if sys.stdout.isatty():
        Console(highlight=False).print(table)
        return
    text = io.StringIO()
    Console(file=text, width=_WIDE, highlight=False).print(table)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines()))


def show_plan(config: RunConfig, kind: str, *, as_json: bool) -> None:
    """Print what `submit` would do."""
    runs = expand(config)
    folder = Path(config.runs_dir) / config.name
    plan = [
        {
            "run": index,
            "changes": describe(config, index) if config.sweep else {},
            "steps": run.training.steps,
            "global_batch_size": run.global_batch_size,
            "tokens_per_step": run.global_batch_size * run.data.sequence_tokens,
            "ranks": run.world_size,
        }
        for index, run in enumerate(runs)
    ]
    if as_json:
        write_json({"folder": str(folder), "exists": folder.exists(), "cluster": kind, "runs": plan})
        return
    _say(f"would create {folder} and send {len(runs)} run(s) to {_place(kind)}; nothing was created")
    if folder.exists():
        _say("but that folder exists already, so `submit` would refuse: choose another name (name=...), or delete it")
    rows = [
        (
            str(row["run"]),
            str(row["steps"]),
            str(row["global_batch_size"]),
            str(row["tokens_per_step"]),
            str(row["ranks"]),
            ", ".join(f"{key}={value}" for key, value in describe(config, index).items()) if config.sweep else "-",
        )
        for index, row in enumerate(plan)
    ]
    _write_table(("run", "steps", "samples a step", "tokens a step", "ranks", "settings of its own"), rows)


def show_status(summaries: list[RunSummary], *, as_json: bool) -> None:
    """Print where the runs stand."""
    if as_json:
        write_json([asdict(summary) for summary in summaries])
        return
    rows = [
        (
            str(s.run),
            s.state,
            f"{s.step}/{s.steps}",
            "-" if s.loss is None else f"{s.loss:.4f}",
            str(s.attempts),
            str(s.data_seed),
            s.last_word,
        )
        for s in summaries
    ]
    _write_table(("run", "state", "step", "loss", "attempts", "data seed", "last word"), rows)


def show_reports(reports: list[Report], *, as_json: bool) -> None:
    """Print what happened to the runs."""
    if as_json:
        write_json([asdict(report) for report in reports])
        return
    for report in reports:
        _say(Text.assemble((f"run {report.run} {report.state}", "bold"), f": {report.headline}"))
        if report.timeline:
            rows = [(e.when, "-" if e.step is None else str(e.step), e.text) for e in report.timeline]
            _write_table(("when", "step", "what happened"), rows)
        for name, value in report.costs.items():
            _say(f"  {name}: {value}")
        for name, count in report.odd.items():
            if count:
                _say(f"  {name}: {count}")
        _say(f"report: {report.page}")


def show_changed(verb: str, runs: tuple[int, ...], of: int, *, as_json: bool) -> None:
    """Print which runs a command changed."""
    if as_json:
        write_json({"runs": list(runs), "what": verb})
        return
    names = ", ".join(str(run) for run in runs) or "none"
    _say(f"{verb}: {names} (of {of})")


def after_sending(
    folder: SubmissionFolder,
    config: RunConfig,
    kind: str,
    job_id: str,
    runs: list[int],
    *,
    detach: bool,
    as_json: bool,
) -> None:
    """Say what was sent; on this machine follow the runs to their end, and exit with 1 if one did not finish."""
    if detach or kind != "local":
        if as_json:
            write_json({"folder": str(folder.path), "cluster": kind, "job_id": job_id, "runs": runs})
        else:
            _say(f"sent {len(runs)} run(s) to {_place(kind)} as job {job_id}; folder {folder.path}")
            _say(f"see `python -m hpc_resume status {folder.path}`")
        return
    from hpc_resume.reporting.follow import follow
    from hpc_resume.reporting.report import make_reports

    summaries = follow(folder, config, job_id, runs, quiet=as_json)
    reports = make_reports(folder)
    if as_json:
        write_json([asdict(summary) for summary in summaries])
    else:
        show_reports([report for report in reports if report.run in runs], as_json=False)
    if any(summary.state != "finished" for summary in summaries):
        raise SystemExit(1)


def _place(kind: str) -> str:
    return "this machine" if kind == "local" else "Slurm"
