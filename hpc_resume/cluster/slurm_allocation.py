"""A Slurm job as seen from inside: what a supervisor in its batch step can ask for."""

from __future__ import annotations

import logging
import os
import subprocess
import time
from collections.abc import Mapping
from math import inf

from hpc_resume.cluster.base import Interruption
from hpc_resume.cluster.liveness import are_apart, liveness, process_liveness, request_of_this_process
from hpc_resume.cluster.processes import node_name
from hpc_resume.cluster.slurm_commands import (
    SilentError,
    ask,
    down_nodes,
    earlier_states,
    expand_nodes,
    setting,
    show_jobs,
    while_silent,
)
from hpc_resume.cluster.slurm_facts import JobFacts, interruption_from_state, interruption_of
from hpc_resume.cluster.srun import SrunWorkers
from hpc_resume.config.cluster_section import ClusterConfig
from hpc_resume.errors import ClusterError, ConfigError
from hpc_resume.journal.claims import Liveness
from hpc_resume.journal.folder import RunFolder
from hpc_resume.recovery.events import ClaimRequested

_log = logging.getLogger(__name__)
_ASK_AGAIN_S = 60.0
"""How often Slurm is asked for the end of the job's time, which an administrator may move."""
_MOVED_S = 60.0
"""A change of that end that is worth a line in the log."""
_PROBE_LIMIT_S = 30.0
_LAST_S = 30.0
"""What is kept of the job's time to put it back into the queue."""
_PATIENCE_S = 600.0
_SECOND_OPINION_S = 3.0
"""A process that Slurm is ending has `KillWait` left to write down why, 30 s on most clusters."""
_A_WEEK_S = 7 * 24 * 3600.0
"""How long a requeue may take: the job keeps its nodes meanwhile, and without its controller nothing else runs."""
_NODE_TIMEOUT_S = 300.0


def is_in_job(environment: Mapping[str, str]) -> bool:
    """Tell whether this process belongs to a Slurm job."""
    return "SLURM_JOB_ID" in environment


def is_started_again(environment: Mapping[str, str]) -> bool:
    """Tell whether Slurm has started this process's job before; on the first start it does not say."""
    return int(environment.get("SLURM_RESTART_COUNT") or 0) > 0


def job_name(environment: Mapping[str, str]) -> str:
    """Return the job as `scontrol` takes it; the bare number of an array's last element is that of the whole array."""
    if "SLURM_ARRAY_JOB_ID" in environment:
        return f"{environment['SLURM_ARRAY_JOB_ID']}_{environment['SLURM_ARRAY_TASK_ID']}"
    return environment["SLURM_JOB_ID"]


class NotRequeuedError(ClusterError):
    """Slurm will not start a job again."""


class SlurmAllocation:
    """The Slurm job that this process is the batch step of."""

    sigterm_is_a_person = False

    def __init__(self, config: ClusterConfig) -> None:
        """Take the job from the environment.

        Raises:
            ConfigError: this is not the batch step of a job with enough nodes.
        """
        if "SLURM_STEP_ID" in os.environ and os.environ.get("SLURM_JOB_NAME") != "interactive":
            raise ConfigError(
                "the supervisor was started by srun; call it directly in the batch script (`exec python -m hpc_resume "
                "run ...`), it starts the ranks itself; in a shell that srun gave you, train on this node alone with "
                "cluster.kind=local"
            )
        self.job_id = job_name(os.environ)
        self.restart_count = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
        self.nodes = expand_nodes(os.environ.get("SLURM_JOB_NODELIST", ""))
        if len(self.nodes) < config.min_nodes:
            raise ConfigError(
                f"Slurm job {self.job_id} has {len(self.nodes)} node(s), but cluster.nodes is {config.nodes}; "
                "make the two agree (`#SBATCH --nodes=` in a batch script)"
            )
        # A fixed number may be that of a batch script of the user's, which asks for spare ones, too.
        is_range = config.min_nodes < config.max_nodes
        self._needed = config.min_nodes if is_range else len(self.nodes)
        self._end: float | None = None
        self._asked_at = -_ASK_AGAIN_S

    def request(self, claim: int) -> ClaimRequested:
        """Return who this supervisor is."""
        return request_of_this_process(
            claim, "slurm", self.job_id, self.restart_count, os.environ.get("SLURM_CLUSTER_NAME", "")
        )

    def liveness(self, request: ClaimRequested) -> Liveness:
        """Tell whether another supervisor is still there; one of an earlier start of this very job is not.

        Raises:
            ClusterError: Slurm gives no answer for a long time.
        """
        elsewhere = are_apart(request.slurm_cluster, os.environ.get("SLURM_CLUSTER_NAME", ""))
        if request.cluster == "slurm" and request.job_id == self.job_id and not elsewhere:
            if request.restart_count < self.restart_count:
                return "dead"
            return process_liveness(request)
        # A controller that is silent for a moment must not make this run look taken.
        self._facts()
        return liveness(request)

    def end_leftovers(self, folder: RunFolder, attempt: int) -> None:
        """Do nothing: Slurm ends all processes of a job before it starts it again."""

    def start(self, folder: RunFolder, attempt: int, claim: int, config: ClusterConfig) -> SrunWorkers:
        """Start the workers of an attempt with srun."""
        return SrunWorkers(folder, attempt, claim, config, self.nodes, self._is_ending)

    def seconds_left(self) -> float | None:
        """Return how long this job may still run, by Slurm's word and this process's own clock since."""
        now = time.monotonic()
        if now - self._asked_at >= _ASK_AGAIN_S:
            self._asked_at = now
            try:
                facts = self._facts(limit_s=0)
                if facts is not None:
                    end = None if facts.limit_s is None else now + facts.limit_s - facts.run_s
                    if end is not None and abs(end - (self._end or 0.0)) > _MOVED_S:
                        _log.info("the job's time ends in %.0f s", end - now)
                    self._end = end
            except ClusterError as error:
                _log.warning("can't ask for the end of the job's time: %s", error)
        return None if self._end is None else self._end - time.monotonic()

    def interruption(self, *, suspicious: bool = False) -> Interruption | None:
        """Ask Slurm what it is doing to this job.

        When nobody knows why the workers ended, every node has to start a small step. One that can't is
        taken for lost, but Slurm notices that only after a while; until then the job could not be started again anyway.
        """
        found = self._interruption()
        if found is not None or not suspicious:
            return found
        silent = self._silent_nodes()
        if not silent:
            return self._interruption()
        _log.warning("%s can't start a step; waiting for what Slurm makes of it", ", ".join(silent))
        deadline = time.monotonic() + min(self._node_timeout_s() + 60.0, (self.seconds_left() or inf) - _LAST_S)
        while time.monotonic() < deadline:
            found = self._interruption()
            if found is not None:
                return found
            if not (silent := self._silent_nodes()):
                return None
            time.sleep(1.0)
        return Interruption(cause="node", message=f"{', '.join(silent)} can't start a step any more", nodes=silent)

    def why_lost(self, request: ClaimRequested, nodes: tuple[str, ...]) -> Interruption | None:
        """Ask Slurm why another supervisor vanished, whose job had these nodes."""
        if are_apart(request.slurm_cluster, os.environ.get("SLURM_CLUSTER_NAME", "")):
            return None  # another job has its number here
        states = earlier_states(request.job_id)
        state = states[request.restart_count] if len(states) > request.restart_count else ""
        try:
            down = down_nodes(nodes)
        except ClusterError as error:
            _log.warning("can't ask for the state of %s: %s", ", ".join(nodes), error)
            down = ()
        return interruption_from_state(state, down)

    def can_avoid(self, node: str) -> bool:
        """Tell whether the partition has enough nodes like this one without it and those avoided already.

        Only nodes with its features and its GPUs are counted: others may not be what the job asks for, and a job that
        no node is left for would wait for ever.
        """
        try:
            facts = self._facts()
            if facts is None or node in expand_nodes(facts.required):
                return False
            text = ask("sinfo", "-N", "-h", "-p", facts.partition, "-o", "%N|%f|%G|%T")
            lines = [line.split("|") for line in text.splitlines()]
            kind = next((line[1:3] for line in lines if line[0] == node), None)
            alike = {line[0] for line in lines if line[1:3] == kind and not line[3].startswith(("down", "drain"))}
            left = alike - {node, *expand_nodes(facts.excluded)}
        except ClusterError as error:
            _log.warning("can't tell whether there are other nodes: %s", error)
            return False
        return len(left) >= self._needed

    def requeue(self, avoid: tuple[str, ...] = ()) -> None:
        """Put this job back into Slurm's queue, once, whatever its controller does meanwhile.

        `requeue incomplete` does nothing to a job that was cancelled, and nothing twice. When the controller is silent
        it may have heard all the same, so the restart count is looked at before the next try. A job that a person
        has cancelled is left alone.

        Raises:
            NotRequeuedError: Slurm will not start this job again.
        """
        for attempt in while_silent(_A_WEEK_S):
            with attempt:
                facts = self._facts(limit_s=0)
                if facts is None:
                    raise NotRequeuedError(f"Slurm knows job {self.job_id} no more")
                if facts.restarts == self.restart_count and not facts.is_ending(self.restart_count):
                    self._ask_for_requeue(facts)
                    facts = self._facts(limit_s=0) or facts
                if facts.restarts > self.restart_count:
                    self._avoid(facts, avoid)
                    return
                found = self._interruption()
                if found is None or found.cause != "cancelled":
                    why = found.message if found is not None else f"it is {facts.state}"
                    raise NotRequeuedError(f"Slurm does not start job {self.job_id} again: {why}")

    def _ask_for_requeue(self, facts: JobFacts) -> None:
        try:
            if not facts.may_requeue:
                ask("scontrol", "update", f"JobId={self.job_id}", "Requeue=1")
            ask("scontrol", "requeue", "incomplete", self.job_id)
        except SilentError:
            raise
        except ClusterError as error:
            raise NotRequeuedError(str(error)) from error

    def _avoid(self, facts: JobFacts, avoid: tuple[str, ...]) -> None:
        if not avoid:
            return
        # Slurm takes this only for a job that waits, and the new list replaces the old one.
        names = sorted({*expand_nodes(facts.excluded), *avoid})
        try:
            ask("scontrol", "update", f"JobId={self.job_id}", f"ExcNodeList={','.join(names)}")
        except ClusterError as error:
            _log.warning("can't keep the job from %s: %s", ", ".join(avoid), error)

    def _is_ending(self) -> bool:
        """Tell whether Slurm is ending all processes of this job."""
        try:
            facts = self._facts(limit_s=0)
        except ClusterError:
            return False
        return facts is None or facts.is_ending(self.restart_count)

    def _interruption(self) -> Interruption | None:
        facts = self._facts()
        if facts is None:
            return None
        down = down_nodes(self.nodes) if facts.is_ending(self.restart_count) else ()
        found = interruption_of(facts, self.restart_count, down)
        if found is not None and found.final and found.cause in ("preempted", "cancelled"):
            # A node that was gone for a moment is back by now, and there are limits that the job does not know of.
            states = earlier_states(self.job_id, _SECOND_OPINION_S)[self.restart_count :]
            return interruption_from_state(states[0] if states else "", ()) or found
        return found

    def _facts(self, *, limit_s: float = _PATIENCE_S) -> JobFacts | None:
        """Ask for this job, and again while the controller is silent."""
        jobs = while_silent(limit_s)(show_jobs, self.job_id)
        return next((facts for facts in jobs if facts.job_id == self.job_id), None)

    def _silent_nodes(self) -> tuple[str, ...]:
        """Return the nodes on which no step can be started; none if the question itself does not work here."""
        # Not what the job was sent with: some of its options let no second step start beside the first.
        kept = ("SLURM_CONF", "SLURM_JOB_ID", "SLURM_CLUSTERS")
        environment = {n: v for n, v in os.environ.items() if n in kept or not n.startswith(("SLURM", "SRUN_"))}
        probes = {
            node: subprocess.Popen(
                ["srun", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={node}", "--gres=none", "true"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
            )
            for node in self.nodes
        }
        deadline = time.monotonic() + _PROBE_LIMIT_S
        silent = []
        for node, probe in probes.items():
            try:
                code = probe.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                probe.kill()
                probe.wait()
                code = -1
            if code != 0:
                silent.append(node)
        if node_name() in silent:
            _log.warning("not even the supervisor's own node can start a step, so that says nothing")
            return ()
        return tuple(silent)

    def _node_timeout_s(self) -> float:
        try:
            text = setting("SlurmdTimeout") or ""
            return float(text.split()[0])
        except (ClusterError, ValueError, IndexError):
            return _NODE_TIMEOUT_S
