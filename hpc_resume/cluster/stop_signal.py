"""Hearing that this process is asked to end."""

from __future__ import annotations

import signal
from types import FrameType


class StopSignal:
    """Counts the requests to end; submitit's own handlers are replaced, they would requeue or ignore them."""

    def __init__(self) -> None:
        """Take SIGTERM and SIGINT; USR2 and CONT are for submitit, and mean nothing here."""
        self.requests = 0
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        for number in (signal.SIGUSR2, signal.SIGCONT):
            signal.signal(number, lambda _number, _frame: None)

    @property
    def requested(self) -> bool:
        """Whether anybody has asked."""
        return self.requests > 0

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.requests += 1
