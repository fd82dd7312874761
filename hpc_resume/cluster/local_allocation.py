"""This machine as a cluster: what a supervisor that runs here can ask for."""

from __future__ import annotations

import os

from hpc_resume.cluster.base import Interruption
from hpc_resume.cluster.liveness import liveness, request_of_this_process
from hpc_resume.cluster.processes import node_name
from hpc_resume.cluster.torchrun import TorchrunWorkers, end_processes
from hpc_resume.config.cluster_section import ClusterConfig
from hpc_resume.journal.claims import Liveness
from hpc_resume.journal.folder import RunFolder
from hpc_resume.recovery.events import ClaimRequested

JOB_ID = "HPC_RESUME_JOB_ID"
RESTART_COUNT = "HPC_RESUME_RESTART_COUNT"


class LocalAllocation:
    """This machine, for the supervisor of one run; the local queue starts it again after a requeue."""

    def __init__(self) -> None:
        """Take this machine as it is."""
        self.nodes: tuple[str, ...] = (node_name(),)
        self.sigterm_is_a_person = True

    def request(self, claim: int) -> ClaimRequested:
        """Return who this supervisor is."""
        return request_of_this_process(
            claim, "local", os.environ.get(JOB_ID, ""), int(os.environ.get(RESTART_COUNT, "0"))
        )

    def liveness(self, request: ClaimRequested) -> Liveness:
        """Tell whether another supervisor is still there."""
        return liveness(request)

    def end_leftovers(self, folder: RunFolder, attempt: int) -> None:
        """End the ranks of a lost attempt that still run on this machine."""
        end_processes(folder, attempt)

    def start(self, folder: RunFolder, attempt: int, claim: int, config: ClusterConfig) -> TorchrunWorkers:
        """Start the workers of an attempt with torchrun."""
        return TorchrunWorkers(folder, attempt, claim, config.ranks_per_node)

    def seconds_left(self) -> float | None:
        """Return None: nobody ends a job here."""
        return None

    def interruption(self, *, suspicious: bool = False) -> Interruption | None:  # noqa: ARG002
        """Return None: nobody but people does anything to a job here."""
        return None

    def why_lost(self, request: ClaimRequested, nodes: tuple[str, ...]) -> Interruption | None:  # noqa: ARG002
        """Return None: nobody can be asked."""
        return None

    def can_avoid(self, node: str) -> bool:  # noqa: ARG002
        """Return False: there is no other machine."""
        return False

    def requeue(self, avoid: tuple[str, ...] = ()) -> None:
        """Do nothing: the exit code tells the local queue."""
