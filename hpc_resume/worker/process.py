"""What makes a process a rank: its log, its signals, its report."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time
import traceback
from types import FrameType

from hpc_resume.cluster.processes import boot_id, node_name, start_ticks, tie_to_parent
from hpc_resume.cluster.srun import step_name
from hpc_resume.cluster.torchrun import LAUNCHER
from hpc_resume.errors import HpcResumeError
from hpc_resume.journal.folder import RunFolder
from hpc_resume.journal.writer import sync_file


class RankProcess:
    """This process, as one rank of an attempt."""

    def __init__(self, folder: RunFolder, attempt: int, rank: int) -> None:
        """Know which rank this is; nothing happens yet."""
        self._folder = folder
        self.attempt = attempt
        self._rank = rank
        self._stop = False

    def stop_requested(self) -> bool:
        """Tell whether this rank was asked to leave."""
        return self._stop

    def set_up(self) -> None:
        """Send output to this rank's log, take the signals for stopping and for stacks, and say who this is."""
        log = self._folder.log(self.attempt, self._rank)
        log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.close(descriptor)
        # No rank may outlive its supervisor: that kills its launcher, and the kernel the rest.
        # Under srun the parent is Slurm's own, which ends the ranks of a job that is over; in a container it may be 1.
        launcher = os.environ.get(LAUNCHER)
        tie_to_parent(int(launcher) if launcher else os.getppid(), signal.SIGKILL)
        # The supervisor asks for this before it ends silent ranks.
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        # Only a flag: all ranks agree on the step at which they leave.
        for number in (signal.SIGTERM, signal.SIGUSR2):
            signal.signal(number, self._on_signal)
        os.register_at_fork(after_in_child=_as_child_of_a_rank)
        self._report({"state": "started"})

    def report_failure(self, error: BaseException) -> None:
        """Say why this rank failed: exit codes lie."""
        try:
            traceback.print_exception(error)
            sys.stderr.flush()
        except OSError:
            pass  # no room for the log; the report is smaller, and worth a try
        frames = traceback.extract_tb(error.__traceback__)
        place = f"{frames[-1].filename}:{frames[-1].name}" if frames else ""
        self._report(
            {
                "state": "failed",
                "type": type(error).__name__,
                "message": str(error),
                "place": place,
                "by_user": isinstance(error, HpcResumeError) and error.exit_code == 2,
            }
        )

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._stop = True

    def _report(self, content: dict[str, object]) -> None:
        path = self._folder.rank_report(self.attempt, self._rank)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = path.with_suffix(".tmp")
        identity = {
            "rank": self._rank,
            "host": node_name(),
            "pid": os.getpid(),
            "boot_id": boot_id(),
            "start_ticks": start_ticks(os.getpid()),
            "step": step_name(os.environ),
            "time": time.time(),
        }
        temporary.write_text(json.dumps({**identity, **content}), encoding="utf-8")
        sync_file(temporary)
        temporary.replace(path)


def _as_child_of_a_rank() -> None:
    """Make a forked DataLoader worker live exactly as long as its rank."""
    # Slurm signals every process of a step; a loader process that died of it would take the rank with it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR2})
    tie_to_parent(None, signal.SIGKILL)
