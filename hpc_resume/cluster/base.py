"""What a supervisor needs from the place it runs in, whatever that is."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Protocol

from hpc_resume.config.schema import RunConfig
from hpc_resume.journal.claims import Liveness
from hpc_resume.journal.folder import RunFolder, SubmissionFolder
from hpc_resume.recovery.events import ClaimRequested

EXIT_FINISHED = 0
EXIT_FAILED = 1
EXIT_INPUT = 2
EXIT_BUSY = 3
EXIT_REQUEUED = 75
"""`EX_TEMPFAIL`: the run wants to go back to the queue."""
EXIT_STOPPED = 143
"""A person stopped or cancelled the run; nothing is to start it again by itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankReport:
    """What a rank said of itself."""

    rank: int
    pid: int
    state: str
    time: float
    error: str = ""
    message: str = ""
    place: str = ""
    by_user: bool = False


class Workers(Protocol):
    """The running processes of one attempt."""

    def wait(self, timeout_s: float) -> int | None:
        """Return the launcher's exit code once all ranks are gone, or None after `timeout_s`."""
        ...

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every rank."""
        ...

    def kill(self) -> None:
        """End every rank at once and wait until they are gone.

        Raises:
            ClusterError: they don't go; nothing may be started beside them.
        """
        ...

    def reports(self) -> list[RankReport]:
        """Return what the ranks said of themselves."""
        ...


class Allocation(Protocol):
    """The place that a supervisor runs in."""

    def request(self, claim: int) -> ClaimRequested:
        """Return who this supervisor is."""
        ...

    def liveness(self, request: ClaimRequested) -> Liveness:
        """Tell whether another supervisor is still there."""
        ...

    def end_leftovers(self, folder: RunFolder, attempt: int) -> None:
        """End whatever processes of a lost attempt are still running here.

        Raises:
            ClusterError: they don't go; nothing may be started beside them.
        """
        ...

    def start(self, folder: RunFolder, attempt: int, claim: int, ranks: int) -> Workers:
        """Start the workers of an attempt, which belongs to this claim."""
        ...

    def seconds_left(self) -> float | None:
        """Return how long this job may still run; None if there is no limit."""
        ...

    def requeue(self) -> None:
        """Have the same job started again once this supervisor is gone."""
        ...


class Cluster(Protocol):
    """Where runs are sent to."""

    kind: str

    def submit(self, folder: SubmissionFolder, runs: list[int], config: RunConfig) -> str:
        """Send runs as one array; return the job's id."""
        ...

    def is_alive(self, job_id: str) -> bool:
        """Tell whether a job may still start or go on with its runs."""
        ...

    def stop(self, job_id: str) -> None:
        """Ask a job for a clean stop of all its runs."""
        ...
