"""Leaves nothing of a cluster once whoever started it is gone: `reaper.py MARK FOLDER`, with a pipe from its starter.

Needs nothing but Python itself, so that it works whatever else is broken.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path


def marked(entry: str) -> set[int]:
    """Return the living processes with this `NAME=value` in their environment, and all their descendants."""
    parents: dict[int, int] = {}
    found: set[int] = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            # After the name, which may hold anything, in parentheses: the state, then the parent.
            state, parent = (path / "stat").read_bytes().rpartition(b")")[2].split()[:2]
            if state in (b"Z", b"X"):
                continue
            parents[int(path.name)] = int(parent)
            if entry.encode() in (path / "environ").read_bytes().split(b"\0"):
                found.add(int(path.name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def kill(pids: set[int]) -> None:
    """End all of them as if at once, and give the dead a moment to vanish.

    They are stopped first: who outlives another by a moment could still tell somebody how that one ended.
    """
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            try:
                os.kill(pid, number)
            except (ProcessLookupError, PermissionError):
                continue
    time.sleep(0.02)


def main(mark: str, folder: Path) -> None:
    """Wait until the starter ends or lets go; then end what carries the mark, and remove the folder."""
    sys.stdin.buffer.read()
    while left := marked(mark):
        kill(left)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
