"""Writing the journal: one file per writer, created exclusively, every record synced."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from hpc_resume.errors import JournalError
from hpc_resume.journal.codec import encode
from hpc_resume.recovery import events as ev


def sync_file(path: Path) -> None:
    """Make the contents of a file durable, whoever wrote it."""
    _sync(path)


def sync_folder(path: Path) -> None:
    """Make the entries of a folder durable."""
    _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class JournalWriter:
    """The only writer of one journal file.

    Each record carries its number in the file, the wall clock (for people; never for order) and, in `seen`, how many
    records of every other file its writer had read; entries that didn't change since the last record are left out.
    """

    def __init__(self, path: Path, first: ev.Event, seen: dict[str, int] | None = None) -> None:
        """Create the file with its first record in one step.

        Raises:
            FileExistsError: somebody else has this number.
            JournalError: the disk refused.
        """
        self.path = path
        self._count = 0
        self._torn = False
        self._seen = dict(seen or {})
        self._told: dict[str, int] = {}
        line = self._line(first)
        # A link appears with its content or not at all, and fails if the name is taken, also on NFS.
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{time.time_ns()}")
        try:
            with temporary.open("w", encoding="utf-8") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(temporary, path)
            finally:
                temporary.unlink()
            sync_folder(path.parent)
            # Without a buffer: what the disk refused must not reach it later, when the file is closed.
            self._file = path.open("ab", buffering=0)
        except FileExistsError:
            raise
        except OSError as error:
            raise JournalError(f"can't create {path}: {error.strerror}; is the disk full or read-only?") from error

    def saw(self, seen: dict[str, int]) -> None:
        """Note what the writer has read since its last record."""
        self._seen.update(seen)
        self._seen.pop(self.path.stem, None)

    def record(self, event: ev.Event) -> None:
        """Append one event and make it durable.

        Raises:
            JournalError: the disk refused; the event must be taken as not recorded.
        """
        told = dict(self._told)
        line = self._line(event).encode()
        # What is left of a record that the disk refused must not swallow this one.
        rest = b"\n" + line if self._torn else line
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            # Recorded again, it has the same number: if it did reach the disk, a reader takes it once.
            self._torn, self._told, self._count = True, told, self._count - 1
            raise JournalError(f"can't write to {self.path}: {error.strerror}; is the disk full?") from error
        self._torn = False

    def close(self) -> None:
        """Close the file; what was recorded stays."""
        self._file.close()

    def _line(self, event: ev.Event) -> str:
        self._count += 1
        news = {name: count for name, count in self._seen.items() if self._told.get(name) != count}
        self._told.update(news)
        record = {"seq": self._count, "time": round(time.time(), 3), "seen": news, "event": encode(event)}
        return json.dumps(record, separators=(",", ":")) + "\n"
