"""One line per step on disk: what the report draws, and the heartbeat that the supervisor listens to."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any


class MetricsWriter:
    """Appends rows in memory; a thread brings them to disk every few seconds, never the training step."""

    def __init__(self, path: Path, interval_s: float) -> None:
        """Create the file for one attempt."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._file = path.open("a", encoding="utf-8")
        self._lock = threading.Lock()
        self._rows: list[str] = []
        self._stop = threading.Event()
        self._interval_s = interval_s
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def row(self, **values: Any) -> None:
        """Add the row of one step."""
        with self._lock:
            self._rows.append(json.dumps(values, separators=(",", ":")))

    def phase(self, name: str | None) -> None:
        """Announce what may take long, or its end, at once."""
        self.row(phase=name)
        self.sync()

    def sync(self) -> None:
        """Bring all rows to disk."""
        with self._lock:
            rows, self._rows = self._rows, []
            if not rows:
                return
            self._file.write("\n".join(rows) + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Bring all rows to disk and stop the thread."""
        self._stop.set()
        self._thread.join()
        self.sync()
        self._file.close()

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self.sync()
