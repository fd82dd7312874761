"""Workers on this machine: torchrun starts one process a rank."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time

from hpc_resume.cluster.local_shares import THREADS, threads_per_rank
from hpc_resume.cluster.processes import boot_id, is_running, node_name, send_signal, tie_to_parent
from hpc_resume.cluster.reports import RankReport, read_reports
from hpc_resume.errors import ClusterError
from hpc_resume.journal.folder import RunFolder

LAUNCHER = "HPC_RESUME_LAUNCHER"
"""Environment variable of every rank: the pid of the torchrun process that is its parent."""
_END_LIMIT_S = 30.0


class TorchrunWorkers:
    """The ranks of one attempt, and the torchrun process above them."""

    def __init__(self, folder: RunFolder, attempt: int, claim: int, ranks: int) -> None:
        """Start them for this claim; each rank says of itself which process it is."""
        self._folder = folder
        self._attempt = attempt
        log = folder.launcher_log(attempt)
        log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        command = [
            # `exec` keeps the pid, which nobody can know before the process is there.
            *("/bin/sh", "-c", f'export {LAUNCHER}=$$; exec "$@"', "sh"),
            *(sys.executable, "-m", "torch.distributed.run"),
            *("--standalone", f"--nproc-per-node={ranks}", "--max-restarts=0"),
            *("--module", "hpc_resume.worker", str(folder.path), str(attempt), str(claim)),
        ]
        environment = dict(os.environ)
        # Without this every rank of a machine takes all of its cores, and they trample on each other.
        environment.setdefault(THREADS, str(threads_per_rank(ranks)))
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
                # The supervisor has one thread, so that code between fork and exec is safe here.
                preexec_fn=functools.partial(tie_to_parent, os.getpid(), signal.SIGKILL),  # noqa: PLW1509
            )

    def wait(self, timeout_s: float) -> int | None:
        """Return torchrun's exit code once it is gone, or None after `timeout_s`."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def signal(self, number: signal.Signals) -> None:
        """Signal every rank; torchrun itself would kill them on the same signal."""
        for process in _processes(self._folder, self._attempt):
            send_signal(process.pid, process.start_ticks, number)

    def kill(self) -> None:
        """End torchrun and every rank, and wait until they are gone.

        Raises:
            ClusterError: they don't go.
        """
        self._process.kill()
        try:
            self._process.wait(_END_LIMIT_S)
        except subprocess.TimeoutExpired as error:
            raise _stuck(self._attempt, [self._process.pid], _END_LIMIT_S) from error
        end_processes(self._folder, self._attempt)

    def reports(self) -> list[RankReport]:
        """Return what the ranks said of themselves, the first to fail first."""
        return read_reports(self._folder, self._attempt)

    def ran_out_of_memory(self) -> bool:
        """Return False: nobody here says so."""
        return False


def end_processes(folder: RunFolder, attempt: int, limit_s: float = _END_LIMIT_S) -> None:
    """Kill the ranks of an attempt that still run on this machine, and wait until they are gone.

    Raises:
        ClusterError: some are still there after `limit_s`; nothing may be started beside them.
    """
    processes = _processes(folder, attempt)
    for process in processes:
        send_signal(process.pid, process.start_ticks, signal.SIGKILL)
    deadline = time.monotonic() + limit_s
    # A killed rank can take a moment to leave the kernel; nothing new may start beside it.
    while left := [p.pid for p in processes if is_running(p.pid, p.start_ticks)]:
        if time.monotonic() > deadline:
            raise _stuck(attempt, left, limit_s)
        time.sleep(0.01)


def _stuck(attempt: int, pids: list[int], waited_s: float) -> ClusterError:
    return ClusterError(
        f"can't end process {', '.join(map(str, pids))} of attempt {attempt} on {node_name()}: killed "
        f"{waited_s:.0f} s ago and still there, as when a disk or a GPU does not answer; nothing is started beside it, "
        "so see to that machine and then `resubmit`"
    )


def _processes(folder: RunFolder, attempt: int) -> list[RankReport]:
    here = (boot_id(), node_name())
    return [report for report in read_reports(folder, attempt) if (report.boot_id, report.host) == here]
