"""Workers on this machine: torchrun starts one process a rank."""

from __future__ import annotations

import functools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from hpc_resume.cluster.base import RankReport
from hpc_resume.cluster.local_shares import THREADS, threads_per_rank
from hpc_resume.cluster.processes import boot_id, is_running, send_signal, tie_to_parent
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
            send_signal(process["pid"], process["start_ticks"], number)

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
        found = [
            RankReport(
                rank=data["rank"],
                pid=data["pid"],
                state=data["state"],
                time=data["time"],
                error=data.get("type", ""),
                message=data.get("message", ""),
                place=data.get("place", ""),
                by_user=data.get("by_user", False),
            )
            for data in _read(self._folder, self._attempt)
        ]
        return sorted(found, key=lambda report: report.time)


def end_processes(folder: RunFolder, attempt: int, limit_s: float = _END_LIMIT_S) -> None:
    """Kill the ranks of an attempt that still run on this machine, and wait until they are gone.

    Raises:
        ClusterError: some are still there after `limit_s`; nothing may be started beside them.
    """
    processes = _processes(folder, attempt)
    for process in processes:
        send_signal(process["pid"], process["start_ticks"], signal.SIGKILL)
    deadline = time.monotonic() + limit_s
    # A killed rank can take a moment to leave the kernel; nothing new may start beside it.
    while left := [p["pid"] for p in processes if is_running(p["pid"], p["start_ticks"])]:
        if time.monotonic() > deadline:
            raise _stuck(attempt, left, limit_s)
        time.sleep(0.01)


def _stuck(attempt: int, pids: list[int], waited_s: float) -> ClusterError:
    return ClusterError(
        f"can't end process {', '.join(map(str, pids))} of attempt {attempt} on {socket.gethostname()}: killed "
        f"{waited_s:.0f} s ago and still there, as when a disk or a GPU does not answer; nothing is started beside it, "
        "so see to that machine and then `resubmit`"
    )


def _processes(folder: RunFolder, attempt: int) -> list[dict[str, Any]]:
    here = boot_id()
    return [data for data in _read(folder, attempt) if data["boot_id"] == here]


def _read(folder: RunFolder, attempt: int) -> list[dict[str, Any]]:
    reports: Path = folder.rank_report(attempt, 0).parent
    found = []
    for path in sorted(reports.glob("rank-*.json")):
        try:
            data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            continue  # torn by a power loss; whoever wrote it is gone
        found.append(data)
    return found
