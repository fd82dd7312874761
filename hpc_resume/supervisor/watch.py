"""Watching the workers of one attempt until they are gone."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hpc_resume.cluster.base import Interruption, Workers
from hpc_resume.config.schema import SupervisorConfig
from hpc_resume.errors import ClusterError, JournalError
from hpc_resume.journal.metrics import Heartbeat, read_heartbeat
from hpc_resume.supervisor.classify import Request, Watched

_log = logging.getLogger(__name__)
_POLL_S = 1.0
_BLIND_S = 600.0
"""How long the disk may be unreadable before the watch gives up."""
_STACKS_S = 2.0
_FROZEN_S = 30.0
"""A poll that took this long was none: this process was suspended, and the workers with it."""
_LAST_S = 20.0
"""What is kept of the job's time to put it back into the queue."""
_EARLY_S = 90.0
"""How much earlier than asked for Slurm may say that the time is nearly over."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """What the watch asks about, besides the workers."""

    stops: Callable[[], int]
    """How often this process was asked to end."""
    by_a_person: Callable[[], bool]
    """Whether that was a person, if it was not the cluster for all that it says."""
    requeue_wished: Callable[[], bool]
    interruption: Callable[[], Interruption | None]
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

    def start_again(self) -> None:
        """Forget how long it has been."""
        self._since = time.monotonic()

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
    stops = 0
    seen_at = polled_at = time.monotonic()
    while True:
        code = workers.wait(_POLL_S)
        if code is not None:
            return Watched(exit_code=code, asked=asked)
        polled_at, before = time.monotonic(), polled_at
        if polled_at - before > _FROZEN_S:
            silence.start_again()
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
        if around.stops() > stops:
            stops = around.stops()
            request, interruption = _on_stop(around)
            if interruption is not None and interruption.final:
                _log.info("%s; ending the workers", interruption.message)
                workers.kill()
                return Watched(exit_code=None, interruption=interruption)
            asked, asked_at = _first(asked, request, asked_at)
        asked, asked_at = _first(asked, _request(config, around), asked_at)
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


def _first(asked: Request | None, request: Request | None, asked_at: float) -> tuple[Request | None, float]:
    """Keep the first reason for which the workers are asked to leave, and when that was."""
    if asked is not None or request is None:
        return asked, asked_at
    _log.info("asking the workers to leave: %s", request)
    return request, time.monotonic()


def _on_stop(around: Surroundings) -> tuple[Request, Interruption | None]:
    """Find out who wants this process to end: the cluster, or a person."""
    try:
        found = around.interruption()
    except ClusterError as error:
        # A stop that may be the cluster's must not become one that stays.
        _log.warning("asked to end, and can't ask why: %s", error)
        return "preempted", None
    if found is None:
        # A node that is shut down, say, before Slurm knows of it: the run must go on elsewhere.
        return "terminated" if around.by_a_person() else "preempted", None
    return ("deadline" if found.cause == "deadline" else "preempted"), found


def _grace_s(asked: Request, phase: str | None, config: SupervisorConfig, around: Surroundings) -> float:
    """Return how long workers that were asked to leave may take: a save that has begun is worth waiting for."""
    left = around.seconds_left()
    if asked == "deadline" and left is not None:
        return float("inf") if left > min(_LAST_S, config.deadline_margin_s / 4) else 0.0
    return max(config.stop_grace_s, config.phase_limit_s) if phase == "save" else config.stop_grace_s


def _request(config: SupervisorConfig, around: Surroundings) -> Request | None:
    left = around.seconds_left()
    if left is not None and left < config.deadline_margin_s:
        return "deadline"
    # Slurm sends this up to a minute early; where the time is known, that is the better clock. Else a person did it.
    if around.requeue_wished() and (left is None or left > config.deadline_margin_s + _EARLY_S):
        return "preempted"
    return None
