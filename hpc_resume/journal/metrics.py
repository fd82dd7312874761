"""Reading metrics: the rows of an attempt from either end, and the heartbeat."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

_BLOCK_BYTES = 65536


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """How far a metrics file has grown and when, in what phase its last row is, and the usual seconds of a step."""

    size: int
    changed_ns: int
    phase: str | None
    usual_step_s: float | None


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return all whole rows of an attempt; torn lines are left out."""
    try:
        with path.open("rb") as file:
            return [row for row in map(_row, file) if row is not None]
    except FileNotFoundError:
        return []


def newest_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of an attempt that belong to a step, newest first; only what is asked for is read.

    So the newest step of a file of any size costs one block, and a step before it costs what lies between.
    """
    try:
        with path.open("rb") as file:
            for line in _lines_backwards(file):
                row = _row(line)
                if row is not None and "step" in row:
                    yield row
    except FileNotFoundError:
        return


def loss_at(path: Path, step: int) -> float | None:
    """Return the loss that an attempt last had at a step, if it was there."""
    for row in newest_rows(path):
        if row["step"] <= step:
            return float(row["loss"]) if row["step"] == step else None
    return None


def read_heartbeat(path: Path, tail_bytes: int = 16384) -> Heartbeat:
    """Read the end of a metrics file; opened anew each time, since NFS clients cache open files."""
    try:
        with path.open("rb") as file:
            changed_ns = os.fstat(file.fileno()).st_mtime_ns
            size = file.seek(0, 2)
            file.seek(max(0, size - tail_bytes))
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return Heartbeat(0, 0, "start", None)
    rows = [row for row in map(_row, lines) if row is not None]
    phase = rows[-1].get("phase") if rows else "start"
    seconds = sorted(row["step_s"] for row in rows if "step_s" in row)
    return Heartbeat(size, changed_ns, phase, seconds[len(seconds) // 2] if seconds else None)


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def _lines_backwards(file: BinaryIO) -> Iterator[bytes]:
    end = file.seek(0, 2)
    rest = b""
    while end > 0:
        start = max(0, end - _BLOCK_BYTES)
        file.seek(start)
        first, *lines = (file.read(end - start) + rest).split(b"\n")
        yield from reversed(lines)
        # The first line may begin in the block before.
        rest, end = first, start
    yield rest
