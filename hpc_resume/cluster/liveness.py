"""Is somebody who claimed a run still there?"""

from __future__ import annotations

import os

from hpc_resume.cluster.processes import boot_id, is_running, machine_id, node_name, pid_namespace, start_ticks
from hpc_resume.cluster.slurm_commands import SilentError, final_states, setting, show_jobs
from hpc_resume.cluster.slurm_facts import ENDED, GONE, JobFacts
from hpc_resume.errors import ClusterError
from hpc_resume.journal.claims import Liveness
from hpc_resume.recovery.events import ClaimRequested


class JobBook:
    """What Slurm says of itself and of jobs; each array is asked about once."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._arrays: dict[str, dict[str, JobFacts] | ClusterError] = {}
        self._final: dict[str, dict[str, str]] = {}
        self._name: str | SilentError | None = None

    def slurm_cluster(self) -> str:
        """Return the name of the Slurm that is asked here, which is asked for once; empty if it does not say.

        Raises:
            SilentError: it does not answer.
        """
        if self._name is None:
            try:
                self._name = setting("ClusterName") or ""
            except SilentError as error:
                self._name = error
            except ClusterError:
                self._name = ""
        if isinstance(self._name, SilentError):
            raise self._name
        return self._name

    def is_elsewhere(self, slurm_cluster: str) -> bool:
        """Tell whether jobs of a Slurm of that name are out of reach here: their numbers may be those of other jobs.

        Raises:
            SilentError: the one that could be asked here does not say who it is.
        """
        return bool(slurm_cluster) and are_apart(slurm_cluster, self.slurm_cluster())

    def find(self, *names: str) -> JobFacts | None:
        """Return a job that goes by one of these names, from the controller or else from the accounting; else None.

        Raises:
            ClusterError: Slurm can't be asked.
        """
        array = names[0].partition("_")[0]
        if array not in self._arrays:
            try:
                self._arrays[array] = {facts.job_id: facts for facts in show_jobs(array)}
            except ClusterError as error:
                self._arrays[array] = error
        known = self._arrays[array]
        if isinstance(known, ClusterError):
            raise known
        for name in names:
            if name in known:
                return known[name]
        if array not in self._final:
            self._final[array] = final_states(array)
        for name in names:
            if (state := self._final[array].get(name)) is not None:
                # What the controller has forgotten is over, whatever the accounting has missed.
                return JobFacts(job_id=name, state=state if state in ENDED else GONE)
        return None


def are_apart(one: str, other: str) -> bool:
    """Tell whether two names of Slurm clusters are known, and differ."""
    return bool(one and other) and one.lower() != other.lower()


def liveness(request: ClaimRequested, book: JobBook | None = None) -> Liveness:
    """Tell whether a supervisor is still there, from its process, or from its Slurm job."""
    if request.cluster == "slurm":
        return _job_liveness(request, book or JobBook())
    return process_liveness(request)


def request_of_this_process(
    claim: int, cluster: str, job_id: str, restart_count: int, slurm_cluster: str = ""
) -> ClaimRequested:
    """Return a claim by this process, with all that others need to tell whether it is still there."""
    return ClaimRequested(
        claim=claim,
        cluster=cluster,
        job_id=job_id,
        restart_count=restart_count,
        host=node_name(),
        pid=os.getpid(),
        boot_id=boot_id(),
        start_ticks=start_ticks(os.getpid()),
        pid_namespace=pid_namespace(),
        machine_id=machine_id(),
        slurm_cluster=slurm_cluster,
    )


def process_liveness(request: ClaimRequested) -> Liveness:
    """Tell whether a process is still there.

    That can't be known of one on another machine, or in another container on this one, whose processes are
    counted apart.
    """
    if request.boot_id == boot_id():
        if is_running(request.pid, request.start_ticks):
            return "alive"
        return "dead" if request.pid_namespace == pid_namespace() else "unknown"
    # Names alone prove little: machines share host names, and machines made from one image their ids.
    same_machine = (request.host, request.machine_id) == (node_name(), machine_id())
    return "dead" if same_machine else "unknown"


def _job_liveness(request: ClaimRequested, book: JobBook) -> Liveness:
    """Tell whether that start of the job still has processes, as far as Slurm knows.

    A node that is cut off may go on with a job that was started elsewhere; the newer claim keeps it from doing harm.
    """
    try:
        if book.is_elsewhere(request.slurm_cluster):
            return "unknown"
        facts = book.find(request.job_id)
    except ClusterError:
        return "unknown"
    if facts is None or not facts.lives or facts.waits or facts.restarts > request.restart_count:
        return "dead"
    return "alive"
