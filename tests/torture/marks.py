"""What the processes of a run say of themselves in shared memory, where even a kill leaves it whole."""

from __future__ import annotations

import mmap
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpc_resume.checkpoints import catalog
from hpc_resume.cluster.processes import is_running, send_signal, start_ticks

NOTHING, COPYING, WRITING, BEFORE_RENAME, BEFORE_RECORD = range(5)
"""Where a rank stands in a save."""
NAMES = ("outside", "copying", "writing", "before the rename", "before the record")
_CELLS = 8
_PID, _TICKS, _RESUMED, _SAVE, _WRITES = range(5)
_MAX_RANKS = 8


class Marks:
    """Cells that are written by ranks, at once and whole, and read by whoever kills them."""

    def __init__(self) -> None:
        self._cells = memoryview(mmap.mmap(-1, 4096)).cast("q")

    def clear(self) -> None:
        """Forget the ranks that are gone, but not what they committed."""
        for cell in range(_CELLS * _MAX_RANKS):
            self._cells[cell] = 0

    def enter(self, rank: int) -> None:
        """Note that this process is a rank."""
        self._set(rank, _TICKS, start_ticks(os.getpid()))
        self._set(rank, _PID, os.getpid())

    def resumed(self, rank: int) -> None:
        self._set(rank, _RESUMED, 1)

    def save(self, rank: int, where: int) -> None:
        self._set(rank, _SAVE, where)

    def writes(self, rank: int, *, now: bool) -> None:
        self._set(rank, _WRITES, int(now))

    def committed(self, step: int) -> None:
        """Note, once the manifest's rename has returned, up to where training is safe."""
        self._cells[_CELLS * _MAX_RANKS] = step

    @property
    def safe_step(self) -> int:
        return self._cells[_CELLS * _MAX_RANKS]

    def are_training(self, ranks: int) -> bool:
        return all(self._get(rank, _RESUMED) for rank in range(ranks))

    def where(self, rank: int) -> int:
        """Tell where a rank stands in a save, or stood when it was killed."""
        here = self._get(rank, _SAVE)
        if self._get(0, _SAVE) == BEFORE_RECORD and here != NOTHING:
            return BEFORE_RECORD  # rank 0 has renamed, and the others have not heard of it
        return WRITING if self._get(rank, _WRITES) else here

    def pid(self, rank: int) -> int:
        return self._get(rank, _PID)

    def signal(self, rank: int, number: signal.Signals) -> None:
        send_signal(self._get(rank, _PID), self._get(rank, _TICKS), number)

    def is_alive(self, rank: int) -> bool:
        return is_running(self._get(rank, _PID), self._get(rank, _TICKS))

    def _get(self, rank: int, cell: int) -> int:
        return self._cells[_CELLS * rank + cell]

    def _set(self, rank: int, cell: int, value: int) -> None:
        self._cells[_CELLS * rank + cell] = value


def announce(marks: Marks, rank: int) -> None:
    """Have this process, which is a rank, leave marks at all that it does about saves."""
    from hpc_resume.checkpoints import store
    from hpc_resume.session.recorder import Recorder
    from hpc_resume.session.saver import Saver

    marks.enter(rank)
    begin, rename = store.CheckpointStore.begin, Path.rename

    def marked_begin(self: Any, *arguments: Any, background: bool) -> Any:
        marks.save(rank, COPYING if background else WRITING)
        pending = begin(self, *arguments, background=background)
        marks.save(rank, BEFORE_RENAME)
        return pending

    def marked_rename(self: Path, target: Path) -> Path:
        renamed = rename(self, target)
        if target.name == catalog.MANIFEST:
            marks.committed(int(target.parent.name[5:14]))
            marks.save(rank, BEFORE_RECORD)
        return renamed

    def marked_write(write: Callable[..., Any]) -> Callable[..., Any]:
        def marked(*arguments: Any, **options: Any) -> Any:
            marks.writes(rank, now=True)
            try:
                return write(*arguments, **options)
            finally:
                marks.writes(rank, now=False)

        return marked

    def at_the_end(method: Callable[..., Any]) -> Callable[..., Any]:
        def marked(self: Any, *arguments: Any) -> Any:
            try:
                return method(self, *arguments)
            finally:
                marks.save(rank, NOTHING)

        return marked

    changes: list[tuple[Any, str, Callable[..., Any]]] = [
        (store.CheckpointStore, "begin", marked_begin),
        (Path, "rename", marked_rename),
        (store, "write_state", marked_write(vars(store)["write_state"])),
        (store, "copy_file", marked_write(vars(store)["copy_file"])),
        (Recorder, "committed", at_the_end(Recorder.committed)),
        (Saver, "finish", at_the_end(Saver.finish)),
    ]
    for owner, name, marked in changes:
        setattr(owner, name, marked)
