"""Supervisors and ranks as forks of one process that has imported everything: a start costs hundredths of a second."""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from torture.marks import Marks

from hpc_resume.cluster.local_allocation import LocalAllocation
from hpc_resume.cluster.processes import tie_to_parent
from hpc_resume.cluster.reports import RankReport, read_reports
from hpc_resume.cluster.srun import free_port
from hpc_resume.cluster.torchrun import LAUNCHER, end_processes
from hpc_resume.config.cluster_section import ClusterConfig
from hpc_resume.config.schema import RunConfig
from hpc_resume.journal.claims import Liveness
from hpc_resume.journal.folder import RunFolder
from hpc_resume.recovery import events as ev
from hpc_resume.supervisor import supervise
from hpc_resume.worker.process import RankProcess

Train = Callable[[RunFolder, int, int, Callable[[], bool]], None]
"""What a rank does: run folder, attempt, claim, and what tells that it was asked to leave."""
VIOLATED = 99
_NOTICE_S = 1.0
"""How long a rank may take to notice that another one is gone."""


class ViolationError(Exception):
    """Something that must hold of every run, whatever is done to it, does not."""


def violations(folder: RunFolder) -> str:
    """Return what was found wrong with a run; empty if nothing."""
    path = _violations(folder)
    return path.read_text(encoding="utf-8") if path.exists() else ""


def fork(body: Callable[[], int], folder: RunFolder) -> int:
    """Let a child do this and leave with what it returns; return its pid. Violations are left for `violations`."""
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = VIOLATED
    try:
        tie_to_parent(parent, signal.SIGKILL)
        code = body()
    except ViolationError as error:
        with _violations(folder).open("a", encoding="utf-8") as file:
            file.write(f"{error}\n")
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class ForkedWorkers:
    """The ranks of one attempt."""

    def __init__(self, folder: RunFolder, attempt: int, ranks: int, be_rank: Callable[[int, int], int]) -> None:
        self._folder = folder
        self._attempt = attempt
        port = free_port()
        self._left = [fork(functools.partial(be_rank, rank, port), folder) for rank in range(ranks)]
        self._code: int | None = None

    def wait(self, timeout_s: float) -> int | None:
        deadline = time.monotonic() + timeout_s
        first_gone: float | None = None
        while True:
            for pid in list(self._left):
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    self._left.remove(pid)
                    self._code = max(self._code or 0, abs(os.waitstatus_to_exitcode(status)))
            now = time.monotonic()
            if not self._left:
                return self._code
            if self._code is not None:
                first_gone = first_gone or now
                if now > first_gone + _NOTICE_S:
                    self.kill()
            if now > deadline:
                return None
            time.sleep(0.002)

    def signal(self, number: signal.Signals) -> None:
        for pid in self._left:
            os.kill(pid, number)

    def kill(self) -> None:
        while self._left:
            os.kill(self._left[0], signal.SIGKILL)
            os.waitpid(self._left.pop(0), 0)
        end_processes(self._folder, self._attempt)

    def reports(self) -> list[RankReport]:
        return read_reports(self._folder, self._attempt)

    def ran_out_of_memory(self) -> bool:
        return False


class ForkedAllocation(LocalAllocation):
    """This machine, where ranks are forked; `before_start` looks at the run when the supervisor has put it in order."""

    def __init__(self, train: Train, marks: Marks, before_start: Callable[[], None]) -> None:
        super().__init__()
        self._train = train
        self._marks = marks
        self._before_start = before_start

    def start(self, folder: RunFolder, attempt: int, claim: int, config: ClusterConfig) -> ForkedWorkers:  # type: ignore[override]
        self._before_start()
        ranks = config.ranks_per_node
        supervisor = os.getpid()

        def be_rank(rank: int, port: int) -> int:
            meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, LAUNCHER: supervisor}
            places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
            os.environ |= {name: str(value) for name, value in {**meeting, **places}.items()}
            process = RankProcess(folder, attempt=attempt, rank=rank)
            process.set_up()
            try:
                self._marked(rank)
                self._train(folder, attempt, claim, process.stop_requested)
            except ViolationError:
                raise
            except BaseException as error:
                process.report_failure(error)
                return 1
            return 0

        return ForkedWorkers(folder, attempt, ranks, be_rank)

    def can_avoid(self, node: str) -> bool:  # noqa: ARG002
        """Return True: then a run goes on however often the same happens to it."""
        return True

    def _marked(self, rank: int) -> None:
        from torture.marks import announce

        announce(self._marks, rank)


class CutOffAllocation(ForkedAllocation):
    """Like one whose older claims ran on a node that is out of reach: their ranks can't be ended, and may live."""

    def __init__(
        self, train: Train, marks: Marks, before_start: Callable[[], None], meanwhile: Callable[[], None]
    ) -> None:
        super().__init__(train, marks, before_start)
        self._meanwhile = meanwhile

    def liveness(self, request: ev.ClaimRequested) -> Liveness:  # noqa: ARG002
        return "dead"

    def end_leftovers(self, folder: RunFolder, attempt: int) -> None:  # noqa: ARG002
        self._meanwhile()


def start_supervisor(folder: RunFolder, config: RunConfig, allocation: LocalAllocation) -> int:
    """Start a supervisor of a run; return its pid."""

    def body() -> int:
        log = folder.supervisor_log()
        log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        return supervise(folder, config, allocation)

    return fork(body, folder)


def _violations(folder: RunFolder) -> Path:
    return folder.submission.path / "violations.txt"
