"""Workers on the nodes of a Slurm job: srun starts one process a rank."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from hpc_resume.cluster.local_shares import THREADS
from hpc_resume.cluster.reports import RankReport, read_reports
from hpc_resume.cluster.slurm_commands import ask, node_address
from hpc_resume.cluster.slurm_facts import expand_tasks
from hpc_resume.config.cluster_section import ClusterConfig
from hpc_resume.errors import ClusterError
from hpc_resume.journal.folder import RunFolder

_log = logging.getLogger(__name__)
_SIGNAL_AGAIN_S = 10.0
_END_LIMIT_S = 15.0
_KILLED_WITHIN_S = 1.0
"""How long srun takes as a rule, once it is told to end its ranks."""
_TORCH = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
_ENDED = re.compile(r"^srun: error: [^\s:]+: tasks? ([\d,-]+): ", re.MULTILINE)
_OUT_OF_MEMORY = re.compile(r"oom[-_ ]kill|out of memory", re.IGNORECASE)


def srun_command(
    folder: RunFolder, attempt: int, claim: int, config: ClusterConfig, nodes: tuple[str, ...], cpus: str | None
) -> list[str]:
    """Return the command that starts the ranks of an attempt; `cpus` is what each of them gets, if that is known."""
    options: dict[str, Any] = {
        "nodes": config.max_nodes,
        "ntasks": config.max_nodes * config.ranks_per_node,
        "ntasks-per-node": config.ranks_per_node,
        # A newer Slurm no longer takes it from the job.
        **({"cpus-per-task": cpus} if cpus else {}),
        "nodelist": ",".join(nodes[: config.max_nodes]),
        **({"gres": gres} if (gres := gres_of(config)) else {}),
        # Also what a rank says before it has opened its log by itself, and what becomes of it when it can't.
        "output": str(folder.log(attempt, 0)).replace("rank-0000", "rank-%4t"),
        "open-mode": "append",
        # Without this the others would wait for ever for a rank that is gone.
        "kill-on-bad-exit": 1,
        "job-name": f"attempt-{attempt}",
        # A job that was sent with --export=NONE would pass that on, and no rank would know where to meet the others.
        "export": "ALL",
        **config.srun,
    }
    return [
        "srun",
        *option_list(options),
        *(config.python or sys.executable, "-m", "hpc_resume.worker", str(folder.path), str(attempt), str(claim)),
    ]


def cores_of_a_rank(config: ClusterConfig, environment: Mapping[str, str]) -> str | None:
    """Return what each rank gets: as the job says, or the config, where a job asked for its cores by the node."""
    ours = None if config.cpus_per_rank is None else str(config.cpus_per_rank)
    return environment.get("SLURM_CPUS_PER_TASK") or ours


def gres_of(config: ClusterConfig) -> str | None:
    """Return the GPUs of each node as `--gres` takes them; None if there are none, or other options name them."""
    if "gres" in config.sbatch:
        return joined(config.sbatch["gres"])
    if any(name.startswith("gpus") for name in config.sbatch):
        return None
    number = config.ranks_per_node if config.gpus_per_node is None else config.gpus_per_node
    return f"gpu:{number}" if number else None


def option_list(options: Mapping[str, Any]) -> list[str]:
    """Return long options as Slurm's programs take them; true is a flag, false leaves the option out."""
    found = []
    for name, value in options.items():
        if value is True:
            found.append(f"--{name.replace('_', '-')}")
        elif (text := joined(value)) is not None:
            found.append(f"--{name.replace('_', '-')}={text}")
    return found


def joined(value: Any) -> str | None:
    """Return the value of an option as text, a list joined with commas; None for what leaves the option out."""
    if value is False or value is None:
        return None
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def become_rank(environment: MutableMapping[str, str]) -> None:
    """Say which rank this is in torch's words, where srun has said it in Slurm's."""
    if "RANK" not in environment and "SLURM_PROCID" in environment:
        environment["RANK"] = environment["SLURM_PROCID"]
        environment["LOCAL_RANK"] = environment["SLURM_LOCALID"]
        environment["WORLD_SIZE"] = environment["SLURM_STEP_NUM_TASKS"]


def step_name(environment: Mapping[str, str]) -> str:
    """Return the Slurm step that this process belongs to, as `scancel` takes it; empty if it is in none."""
    job, step = environment.get("SLURM_JOB_ID"), environment.get("SLURM_STEP_ID")
    return f"{job}.{step}" if job and step else ""


def ended_ranks(text: str) -> list[int]:
    """Return the ranks that srun says ended badly, in its order: `srun: error: n2: tasks 1,3-4: Killed`."""
    return [rank for tasks in _ENDED.findall(text) for rank in expand_tasks(tasks)]


class SrunWorkers:
    """The ranks of one attempt, and the srun process that waits for them."""

    def __init__(
        self,
        folder: RunFolder,
        attempt: int,
        claim: int,
        config: ClusterConfig,
        nodes: tuple[str, ...],
        is_ending: Callable[[], bool] = lambda: False,
    ) -> None:
        """Start them for this claim; each rank says of itself which step it is in.

        `is_ending` tells whether Slurm is ending the job as a whole.
        """
        self._is_ending = is_ending
        self._folder = folder
        self._attempt = attempt
        self._signalled: dict[signal.Signals, float] = {}
        self._log = folder.launcher_log(attempt)
        self._log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        cpus = cores_of_a_rank(config, os.environ)
        environment = {name: value for name, value in os.environ.items() if name not in _TORCH}
        environment["MASTER_ADDR"] = _address(nodes[0])
        # A new one for each attempt: what is left of the one before may still hold its own.
        environment["MASTER_PORT"] = str(free_port())
        environment.setdefault(THREADS, cpus or "1")
        command = srun_command(folder, attempt, claim, config, nodes, cpus)
        _log.info("starting %s", " ".join(command))
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
            )

    def wait(self, timeout_s: float) -> int | None:
        """Return srun's exit code once all ranks are gone, or None after `timeout_s`."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def signal(self, number: signal.Signals) -> None:
        """Have Slurm signal every rank; srun itself would end them on the same signal.

        Repeated calls reach Slurm's controller every ten seconds. Nobody hears before a rank has said where it is.
        """
        now = time.monotonic()
        step = self._step()
        if not step or now - self._signalled.get(number, -_SIGNAL_AGAIN_S) < _SIGNAL_AGAIN_S:
            return
        try:
            ask("scancel", f"--signal={number.name.removeprefix('SIG')}", step)
            self._signalled[number] = now
        except ClusterError as error:
            if self._process.poll() is None:
                _log.warning("can't signal the ranks: %s", error)

    def kill(self) -> None:
        """End every rank at once and wait until they are gone, as far as their nodes answer.

        In a job that Slurm is ending its controller refuses to end a step early, and after KillWait this process is
        killed as well: what it has to write it must write before, so the ranks are left to Slurm.
        """
        if self._process.poll() is None:
            # The one thing that a signal to srun is good for: it has its ranks ended by force.
            self._process.terminate()
        if self.wait(_KILLED_WITHIN_S) is not None:
            return
        if self._is_ending():
            _log.info("Slurm is ending this job; leaving the ranks to it")
            self._leave()
            return
        if self.wait(_END_LIMIT_S) is not None:
            return
        if step := self._step():
            try:
                ask("scancel", "--signal=KILL", step)
            except ClusterError as error:
                _log.warning("can't end the ranks: %s", error)
        if self.wait(_END_LIMIT_S) is None:
            # As when their node is gone. Slurm ends what is left before it starts the job again.
            _log.warning("srun does not end; leaving its ranks to Slurm")
            self._leave()

    def _leave(self) -> None:
        self._process.kill()
        self._process.wait()

    def reports(self) -> list[RankReport]:
        """Return what the ranks said of themselves, the first to fail first.

        A rank that was killed could say nothing; of those, srun knows which one was the first, and Slurm then killed
        the others.
        """
        order = {rank: place for place, rank in enumerate(ended_ranks(self._said()))}
        reports = read_reports(self._folder, self._attempt)
        return sorted(reports, key=lambda r: order.get(r.rank, len(order)) if r.state == "started" else -1)

    def ran_out_of_memory(self) -> bool:
        """Tell whether Slurm says that a rank was killed for the memory that it took."""
        return bool(_OUT_OF_MEMORY.search(self._said()))

    def _said(self) -> str:
        """Return what srun complained of."""
        try:
            return self._log.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def _step(self) -> str:
        return next((report.step for report in self.reports() if report.step), "")


def _address(node: str) -> str:
    try:
        return node_address(node)
    except ClusterError as error:
        _log.warning("can't ask for the address of %s, and take its name: %s", node, error)
        return node


def free_port() -> int:
    """Return a port of this machine that nobody has at this moment."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port
