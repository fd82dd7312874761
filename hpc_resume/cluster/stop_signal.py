"""Hearing that this process is asked to end."""

from __future__ import annotations

import signal
from types import FrameType

HELD_BACK = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)
"""What a program that turns itself into a supervisor blocks before it does."""


class StopSignal:
    """Counts the requests to end; submitit's own handlers are replaced, they would requeue or ignore them."""

    def __init__(self) -> None:
        """Take SIGTERM and SIGINT as a stop, SIGUSR2 as a wish to save and go back to the queue; CONT means nothing."""
        self.requests = 0
        self.interrupted = False
        """Whether one of them was SIGINT, which no cluster sends."""
        self.requeue_wished = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_stop)
        signal.signal(signal.SIGUSR2, self._on_requeue)
        signal.signal(signal.SIGCONT, lambda _number, _frame: None)
        # Whoever started us may have held them back, so that none was lost before somebody could hear.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)

    @property
    def requested(self) -> bool:
        """Whether anybody has asked for a stop."""
        return self.requests > 0

    def _on_stop(self, number: int, _frame: FrameType | None) -> None:
        self.interrupted = self.interrupted or number == signal.SIGINT
        self.requests += 1

    def _on_requeue(self, _number: int, _frame: FrameType | None) -> None:
        self.requeue_wished = True
