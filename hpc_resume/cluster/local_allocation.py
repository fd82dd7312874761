"""This machine as a cluster: what a supervisor that runs here can ask for."""

from __future__ import annotations

import os
import socket

from hpc_resume.cluster.processes import boot_id, is_running, machine_id, pid_namespace, start_ticks
from hpc_resume.cluster.torchrun import TorchrunWorkers, end_processes
from hpc_resume.journal.claims import Liveness
from hpc_resume.journal.folder import RunFolder
from hpc_resume.recovery.events import ClaimRequested

JOB_ID = "HPC_RESUME_JOB_ID"
RESTART_COUNT = "HPC_RESUME_RESTART_COUNT"


class LocalAllocation:
    """This machine, for the supervisor of one run; the local queue starts it again after a requeue."""

    def request(self, claim: int) -> ClaimRequested:
        """Return who this supervisor is."""
        return ClaimRequested(
            claim=claim,
            cluster="local",
            job_id=os.environ.get(JOB_ID, ""),
            restart_count=int(os.environ.get(RESTART_COUNT, "0")),
            host=socket.gethostname(),
            pid=os.getpid(),
            boot_id=boot_id(),
            start_ticks=start_ticks(os.getpid()),
            pid_namespace=pid_namespace(),
            machine_id=machine_id(),
        )

    def liveness(self, request: ClaimRequested) -> Liveness:
        """Tell whether another supervisor is still there.

        That can't be known of one on another machine, or in another container on this one, whose processes are
        counted apart.
        """
        if request.boot_id == boot_id():
            if is_running(request.pid, request.start_ticks):
                return "alive"
            return "dead" if request.pid_namespace == pid_namespace() else "unknown"
        # Names alone prove little: machines share host names, and machines made from one image their ids.
        same_machine = (request.host, request.machine_id) == (socket.gethostname(), machine_id())
        return "dead" if same_machine else "unknown"

    def end_leftovers(self, folder: RunFolder, attempt: int) -> None:
        """End the ranks of a lost attempt that still run on this machine."""
        end_processes(folder, attempt)

    def start(self, folder: RunFolder, attempt: int, claim: int, ranks: int) -> TorchrunWorkers:
        """Start the workers of an attempt with torchrun."""
        return TorchrunWorkers(folder, attempt, claim, ranks)

    def seconds_left(self) -> float | None:
        """Return None: nobody ends a job here."""
        return None

    def requeue(self) -> None:
        """Do nothing: the exit code tells the local queue."""
