"""Watching the workers of one attempt until they are gone."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hpc_resume.cluster.base import Workers
from hpc_resume.config.schema import SupervisorConfig
from hpc_resume.errors import JournalError
from hpc_resume.journal.metrics import Heartbeat, read_heartbeat
from hpc_resume.supervisor.classify import Request, Watched

_log = logging.getLogger(__name__)
_POLL_S = 1.0
_BLIND_S = 600.0
"""How long the disk may be unreadable before the watch gives up."""
_STACKS_S = 2.0


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
        self._beat = (-1, -1)
        self._since = time.monotonic()
        self._usual_step_s: float | None = None
        self.phase: str | None = None
        """What the workers announced last."""

    def too_long(self) -> float | None:
        """Return the seconds of a silence that can only be a hang, else None."""
        beat = read_heartbeat(self._path)
        self.phase = beat.phase
        self._usual_step_s = beat.usual_step_s or self._usual_step_s
        now = time.monotonic()
        if (beat.size, beat.changed_ns) != self._beat:
            self._beat, self._since = (beat.size, beat.changed_ns), now
        silent = now - self._since
        return silent if silent > self._limit_s(beat) else None

    def _limit_s(self, beat: Heartbeat) -> float:
        limit = max(self._config.hang_min_s, self._config.hang_step_factor * (self._usual_step_s or 0.0))
        return max(limit, self._config.phase_limit_s) if beat.phase else limit


def watch(workers: Workers, metrics: Path, config: SupervisorConfig, around: Surroundings) -> Watched:
    """Wait for the end of the workers; ask them to leave, or end them, when that is due.

    Raises:
        OSError: the disk could not be read for too long.
    """
    silence = Silence(metrics, config)
    asked: Request | None = None
    asked_at = 0.0
    seen_at = time.monotonic()
    while True:
        code = workers.wait(_POLL_S)
        if code is not None:
            return Watched(exit_code=code, asked=asked)
        try:
            over = around.cancelled() or around.replaced()
            silent = silence.too_long()
            seen_at = time.monotonic()
        except (OSError, JournalError) as error:
            # A shared file system that hiccups is no reason to end healthy workers.
            _log.warning("can't look after the workers: %s", error)
            if time.monotonic() - seen_at > _BLIND_S:
                raise
            over, silent = False, None
        if over:
            workers.kill()
            return Watched(exit_code=None, asked="cancelled")
        if asked is None and (asked := _request(config, around)) is not None:
            _log.info("asking the workers to leave: %s", asked)
            asked_at = time.monotonic()
        if asked is not None:
            # Again each time: a rank that is just starting can't hear yet, and hearing twice does no harm.
            workers.signal(signal.SIGTERM)
            if time.monotonic() - asked_at > _grace_s(asked, silence.phase, config, around):
                _log.warning("the workers did not leave in time; ending them")
                workers.kill()
                return Watched(exit_code=None, asked=asked)
        if silent is not None:
            _log.warning("no sign of life for %.0f s; writing all stacks to the logs and ending the workers", silent)
            workers.signal(signal.SIGUSR1)
            workers.wait(_STACKS_S)
            workers.kill()
            return Watched(exit_code=None, asked=asked, silent_s=silent)


def _grace_s(asked: Request, phase: str | None, config: SupervisorConfig, around: Surroundings) -> float:
    """Return how long workers that were asked to leave may take: a save that has begun is worth waiting for."""
    left = around.seconds_left()
    if asked == "deadline" and left is not None:
        return float("inf") if left > _POLL_S else 0.0
    return max(config.stop_grace_s, config.phase_limit_s) if phase == "save" else config.stop_grace_s


def _request(config: SupervisorConfig, around: Surroundings) -> Request | None:
    if around.stop_requested():
        return "terminated"
    left = around.seconds_left()
    return "deadline" if left is not None and left < config.deadline_margin_s else None
