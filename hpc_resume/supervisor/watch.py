"""Watching the workers of one attempt until they are gone."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from hpc_resume.cluster.base import Workers
from hpc_resume.config.schema import SupervisorConfig
from hpc_resume.journal.metrics import Heartbeat, read_heartbeat
from hpc_resume.supervisor.classify import Request, Watched

_log = logging.getLogger(__name__)
_POLL_S = 0.25
_STACKS_S = 2.0


class StopSignal:
    """Hears that the supervisor is asked to end; submitit's own handlers are replaced."""

    def __init__(self) -> None:
        """Take SIGTERM and SIGINT; USR2 and CONT are for submitit, and mean nothing here."""
        self.requested = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        for number in (signal.SIGUSR2, signal.SIGCONT):
            signal.signal(number, lambda _number, _frame: None)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.requested = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """What the watch asks about, besides the workers."""

    stop_requested: Callable[[], bool]
    cancelled: Callable[[], bool]
    replaced: Callable[[], bool]
    seconds_left: Callable[[], float | None]


class Silence:
    """How long a metrics file has not grown."""

    def __init__(self, path: Path, config: SupervisorConfig) -> None:
        """Start counting now."""
        self._path = path
        self._config = config
        self._size = -1
        self._since = time.monotonic()
        self._usual_step_s: float | None = None

    def too_long(self) -> float | None:
        """Return the seconds of a silence that can only be a hang, else None."""
        beat = read_heartbeat(self._path)
        self._usual_step_s = beat.usual_step_s or self._usual_step_s
        now = time.monotonic()
        if beat.size != self._size:
            self._size, self._since = beat.size, now
        silent = now - self._since
        return silent if silent > self._limit_s(beat) else None

    def _limit_s(self, beat: Heartbeat) -> float:
        limit = max(self._config.hang_min_s, self._config.hang_step_factor * (self._usual_step_s or 0.0))
        return max(limit, self._config.phase_limit_s) if beat.phase else limit


def watch(workers: Workers, metrics: Path, config: SupervisorConfig, around: Surroundings) -> Watched:
    """Wait for the end of the workers; ask them to leave, or end them, when that is due."""
    silence = Silence(metrics, config)
    asked: Request | None = None
    asked_at = 0.0
    while True:
        code = workers.wait(_POLL_S)
        if code is not None:
            return Watched(exit_code=code, asked=asked)
        if around.cancelled() or around.replaced():
            workers.kill()
            return Watched(exit_code=None, asked="cancelled")
        if asked is None and (asked := _request(config, around)) is not None:
            _log.info("asking the workers to leave: %s", asked)
            asked_at = time.monotonic()
        if asked is not None:
            # Again each time: a rank that is just starting can't hear yet, and hearing twice does no harm.
            workers.signal(signal.SIGTERM)
            if time.monotonic() - asked_at > config.stop_grace_s:
                _log.warning("the workers did not leave within %.0f s; ending them", config.stop_grace_s)
                workers.kill()
                return Watched(exit_code=None, asked=asked)
        silent = silence.too_long()
        if silent is not None:
            _log.warning("no sign of life for %.0f s; writing all stacks to the logs and ending the workers", silent)
            workers.signal(signal.SIGUSR1)
            workers.wait(_STACKS_S)
            workers.kill()
            return Watched(exit_code=None, silent_s=silent)


def _request(config: SupervisorConfig, around: Surroundings) -> Request | None:
    if around.stop_requested():
        return "terminated"
    left = around.seconds_left()
    return "deadline" if left is not None and left < config.deadline_margin_s else None
