"""Reading metrics: the rows of each attempt, and the heartbeat."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc_resume.journal.folder import RunFolder


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """How far a metrics file has grown, in what phase its last row is, and the usual seconds of a step."""

    size: int
    phase: str | None
    usual_step_s: float | None


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return all whole rows of an attempt; a torn last line is left out."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    rows: list[dict[str, Any]] = []
    for line in text.split("\n"):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def read_heartbeat(path: Path, tail_bytes: int = 16384) -> Heartbeat:
    """Read the end of a metrics file; opened anew each time, since NFS clients cache open files."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - tail_bytes))
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return Heartbeat(0, "start", None)
    rows = []
    for line in lines:
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    phase = rows[-1].get("phase") if rows else "start"
    seconds = sorted(row["step_s"] for row in rows if "step_s" in row)
    return Heartbeat(size, phase, seconds[len(seconds) // 2] if seconds else None)


def steps_of(folder: RunFolder, attempt: int) -> dict[int, float]:
    """Return the loss of each step of an attempt."""
    return {row["step"]: float(row["loss"]) for row in read_rows(folder.metrics(attempt)) if "step" in row}
