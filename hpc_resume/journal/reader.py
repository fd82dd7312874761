"""Reading the journal: every file, in an order that all readers agree on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc_resume.journal.codec import decode
from hpc_resume.journal.folder import RunFolder, SubmissionFolder
from hpc_resume.recovery import events as ev
from hpc_resume.recovery.history import History, fold

_NAME = re.compile(r"^(claim|attempt|operator)-(\d+)\.jsonl$")


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """One line of a journal file."""

    file: str
    seq: int
    time: float
    seen: dict[str, int]
    """How many records of other files its writer had read, where that changed since its record before."""
    event: ev.Event


@dataclass(frozen=True, kw_only=True, slots=True)
class Journal:
    """All records of a run in their order, and what was found on the way."""

    records: tuple[Record, ...]
    late: tuple[Record, ...]
    """Records of a claim that a newer one had already replaced: kept, but without effect."""
    torn: int
    """Lines that could not be read: at most the last of a file whose writer was killed."""
    counts: dict[str, int]
    """Records read of each file: what a writer that read this has seen."""
    run: int

    @property
    def history(self) -> History:
        """The state that these records add up to."""
        return fold((record.event for record in self.records), self.run)


def read_journal(folder: RunFolder) -> Journal:
    """Read the journal of a run, with the operator's records of its submission."""
    files: dict[str, list[Record]] = {}
    torn = 0
    for path in [*folder.journal.glob("*.jsonl"), *folder.submission.path.glob("operator-*.jsonl")]:
        if _NAME.match(path.name):
            files[path.stem], bad = _read_file(path)
            torn += bad
    counts = {name: len(records) for name, records in files.items()}
    kept, late = _split_late(files)
    return Journal(records=tuple(_merge(kept)), late=tuple(late), torn=torn, counts=counts, run=folder.index)


def read_operator(submission: SubmissionFolder) -> list[Record]:
    """Read what commands did to a submission, oldest first."""
    paths = sorted(submission.path.glob("operator-*.jsonl"), key=lambda p: _order(p.stem))
    return [record for path in paths for record in _read_file(path)[0]]


def numbers(folder: Path, prefix: str) -> list[int]:
    """Return the numbers of all files `<prefix>-N.jsonl`, ascending."""
    matches = (_NAME.match(p.name) for p in folder.glob(f"{prefix}-*.jsonl"))
    return sorted(int(m.group(2)) for m in matches if m)


def _read_file(path: Path) -> tuple[list[Record], int]:
    # Opened anew each time: an NFS client shows fresh data after an open.
    lines = path.read_bytes().split(b"\n")
    records: list[Record] = []
    torn = 0
    for line in lines:
        if not line.strip():
            continue
        try:
            data: dict[str, Any] = json.loads(line)
            record = Record(
                file=path.stem,
                seq=int(data["seq"]),
                time=float(data["time"]),
                seen={str(name): int(count) for name, count in data["seen"].items()},
                event=decode(data["event"]),
            )
        except (ValueError, KeyError, TypeError):
            torn += 1
            continue
        if records and records[-1].seq == record.seq:
            # Its writer was told that the disk had refused the one before, and wrote what counts under that number.
            records.pop()
        records.append(record)
    return records, torn


def _split_late(files: dict[str, list[Record]]) -> tuple[dict[str, list[Record]], list[Record]]:
    """Part what a replaced claim wrote after the newer one had read its files.

    A zombie, whose node was cut off and came back, can then write what it likes.
    """
    owner = _owners(files)
    kept: dict[str, list[Record]] = {}
    late: list[Record] = []
    opened = [opening for records in files.values() for opening in _openings(records)]
    for name, records in files.items():
        horizons = [seen.get(name, 0) for claim, seen in opened if name in owner and claim > owner[name]]
        horizon = min(horizons, default=len(records))
        kept[name] = records[:horizon]
        late.extend(records[horizon:])
    return kept, late


def _openings(records: list[Record]) -> Iterator[tuple[int, dict[str, int]]]:
    """Yield the claims that a file opens, and all that its writer had read by then."""
    seen: dict[str, int] = {}
    for record in records:
        seen.update(record.seen)
        if isinstance(record.event, ev.ClaimOpened):
            yield record.event.claim, dict(seen)


def _owners(files: dict[str, list[Record]]) -> dict[str, int]:
    """Return the claim that each claim and attempt file belongs to."""
    owners = {name: _order(name)[1] for name in files if name.startswith("claim-")}
    for name, records in files.items():
        if name.startswith("claim-"):
            for record in records:
                if isinstance(record.event, ev.AttemptStarted):
                    attempt = f"attempt-{record.event.attempt:04d}"
                    owners[attempt] = max(owners.get(attempt, 0), owners[name])
    for name, records in files.items():
        # Two claims can have started attempts of the same number, one of them late; the file itself knows whose it is.
        first = records[0].event if records else None
        if isinstance(first, ev.WorkersReady) and first.claim:
            owners[name] = first.claim
    return owners


def _order(name: str) -> tuple[int, int]:
    kind, number = name.split("-")
    return ("operator", "claim", "attempt").index(kind), int(number)


def _merge(files: dict[str, list[Record]]) -> list[Record]:
    """Order all records so that each follows everything that its writer had seen."""
    done = dict.fromkeys(files, 0)
    merged: list[Record] = []

    def emit(name: str, count: int) -> None:
        while done[name] < min(count, len(files[name])):
            record = files[name][done[name]]
            done[name] += 1
            for other in sorted(record.seen, key=_order):
                if other in files:
                    emit(other, record.seen[other])
            merged.append(record)

    for name in sorted(files, key=_order):
        emit(name, len(files[name]))
    return merged
