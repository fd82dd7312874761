"""One line per step on disk: what the report draws, and the heartbeat that the supervisor listens to."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from pathlib import Path
from typing import Any

_log = logging.getLogger(__name__)


class MetricsWriter:
    """Takes rows in memory; a thread brings them to disk every few seconds, never the training step.

    A disk that is slow or full never stops the training: rows wait in memory, and only the newest are kept.
    """

    def __init__(self, path: Path, interval_s: float, keep_rows: int = 100_000) -> None:
        """Start the thread; the file appears with its first rows. This is its only writer."""
        self._path = path
        self._interval_s = interval_s
        self._keep_rows = keep_rows
        self._rows_lock = threading.Lock()
        self._rows: list[str] = []
        # Held while the disk is busy; `row` never waits for it.
        self._disk_lock = threading.Lock()
        self._waiting: list[str] = []
        self._durable_bytes: int | None = None
        self._failing = False
        self._dropped = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def row(self, **values: Any) -> None:
        """Add the row of one step."""
        line = json.dumps(values, separators=(",", ":"))
        with self._rows_lock:
            self._rows.append(line)

    def phase(self, name: str | None) -> None:
        """Announce what may take long, or its end, at once."""
        self.row(phase=name)
        self.sync()

    def sync(self) -> None:
        """Bring all rows to disk; what the disk refuses is tried again the next time."""
        with self._disk_lock:
            with self._rows_lock:
                rows, self._rows = self._rows, []
            self._waiting += rows
            if not self._waiting:
                return
            try:
                self._append("".join(f"{row}\n" for row in self._waiting).encode())
            except OSError as error:
                self._refused(error)
                if rows:
                    self._touch()
            else:
                self._waiting = []
                self._accepted()

    def close(self) -> None:
        """Bring all rows to disk and stop the thread."""
        self._stop.set()
        self._thread.join()
        self.sync()
        if self._waiting:
            _log.warning("%d rows could not be written to %s and are lost", len(self._waiting), self._path)

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self.sync()

    def _append(self, data: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._path.open("ab", buffering=0) as file:
            if self._durable_bytes is None:
                self._durable_bytes = os.fstat(file.fileno()).st_size
            elif self._failing:
                # Rows that a refused write left behind, whole or torn, are about to be written again.
                os.ftruncate(file.fileno(), self._durable_bytes)
            size = len(data)
            while data:
                data = data[file.write(data) :]
            os.fsync(file.fileno())
            self._durable_bytes += size

    def _refused(self, error: OSError) -> None:
        if not self._failing:
            _log.warning(
                "can't write to %s: %s; training goes on, and the newest %d rows are kept to be written later",
                self._path,
                error.strerror,
                self._keep_rows,
            )
        self._failing = True
        excess = len(self._waiting) - self._keep_rows
        if excess > 0:
            if not self._dropped:
                _log.warning("still can't write to %s; the oldest rows are dropped from now on", self._path)
            self._dropped += excess
            del self._waiting[:excess]

    def _touch(self) -> None:
        """Give a sign of life where the file can't grow: to the supervisor that would look like a hang."""
        with contextlib.suppress(OSError):
            os.utime(self._path)

    def _accepted(self) -> None:
        if self._failing:
            _log.warning("%s can be written to again; %d rows were dropped", self._path, self._dropped)
        self._failing, self._dropped = False, 0
