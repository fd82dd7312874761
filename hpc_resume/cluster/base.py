"""What a supervisor needs from the place it runs in, whatever that is."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Literal, Protocol

from hpc_resume.cluster.reports import RankReport
from hpc_resume.config.cluster_section import ClusterConfig
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


InterruptionCause = Literal["preempted", "deadline", "node", "cancelled", "crash", "out_of_memory"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Interruption:
    """What the cluster is doing to a job, and why."""

    cause: InterruptionCause
    message: str
    nodes: tuple[str, ...] = ()
    """The nodes that were lost."""
    final: bool = False
    """Its processes are being killed already: nothing more can be saved."""


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
        """Return what the ranks said of themselves, the first to fail first."""
        ...

    def ran_out_of_memory(self) -> bool:
        """Tell whether the cluster says that a rank was killed for the memory that it took."""
        ...


class Allocation(Protocol):
    """The place that a supervisor runs in."""

    nodes: tuple[str, ...]
    """The nodes that belong to it."""
    sigterm_is_a_person: bool
    """Whether only people send SIGTERM here; else the cluster does, and only SIGINT is surely a person's."""

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

    def start(self, folder: RunFolder, attempt: int, claim: int, config: ClusterConfig) -> Workers:
        """Start the workers of an attempt, which belongs to this claim, on as many of the nodes as `config` says."""
        ...

    def seconds_left(self) -> float | None:
        """Return how long this job may still run; None if there is no limit."""
        ...

    def interruption(self, *, suspicious: bool = False) -> Interruption | None:
        """Ask the cluster what it is doing to this job; None if nothing.

        `suspicious` says that the workers ended, or fell silent, and nobody knows why: then the nodes are looked at.
        """
        ...

    def why_lost(self, request: ClaimRequested, nodes: tuple[str, ...]) -> Interruption | None:
        """Ask the cluster why another supervisor vanished, whose job had these nodes; None if it can't be known."""
        ...

    def can_avoid(self, node: str) -> bool:
        """Tell whether the run could go on without this node."""
        ...

    def requeue(self, avoid: tuple[str, ...] = ()) -> None:
        """Have the same job started again once this supervisor is gone, on other nodes than these.

        Raises:
            ClusterError: the cluster refuses.
        """
        ...


class Cluster(Protocol):
    """Where runs are sent to."""

    kind: str

    def check(self, config: RunConfig) -> None:
        """Find out whether these runs can be sent, before anything is written.

        Raises:
            ConfigError: they can't be.
        """
        ...

    def submit(self, folder: SubmissionFolder, runs: list[int], config: RunConfig) -> str:
        """Send runs as one array; return the job's id."""
        ...

    def cancel(self, job_ids: list[str]) -> None:
        """End the jobs of single runs, whose cancellation was recorded, for good.

        Raises:
            ClusterError: the cluster did not answer.
        """
        ...
