"""The local stand-in for Slurm's queue: one process that starts supervisors, a few at a time, and again on requeue.

submitit's local executor starts this process. It could restart a job by itself, but at most six times and then
ends without a word; here a run is started as long as it asks for it and makes a new claim each time.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from hpc_resume.cluster.base import EXIT_REQUEUED
from hpc_resume.cluster.local_allocation import JOB_ID, RESTART_COUNT
from hpc_resume.journal.folder import SubmissionFolder
from hpc_resume.journal.reader import numbers

_POLL_S = 0.1


@dataclass
class _Element:
    index: int
    restarts: int = 0
    claims: int = 0
    process: subprocess.Popen[bytes] | None = None


@dataclass
class LocalQueue:
    """The runs of one submission on this machine: the description that submitit hands over."""

    folder: str
    runs: list[int]
    parallelism: int
    environment: dict[str, str | None] = field(default_factory=dict)
    """Variables that submitit's executor changes, as they were at submission; None was not set."""

    def checkpoint(self) -> Any:
        """Return the same description again: all state is in the journals."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)

    def __call__(self) -> None:
        """Run every element until none asks to be started again; end with the worst exit code."""
        stopping = _StopFlag()
        for name, value in self.environment.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        waiting = deque(_Element(index) for index in self.runs)
        running: list[_Element] = []
        worst = 0
        while waiting or running:
            if stopping.requested:
                waiting.clear()
                for element in running:
                    _forward_stop(element)
                stopping.requested = False
            while waiting and len(running) < self.parallelism:
                running.append(self._start(waiting.popleft()))
            time.sleep(_POLL_S)
            for element in [e for e in running if e.process and e.process.poll() is not None]:
                running.remove(element)
                code = element.process.returncode if element.process else 0
                if self._wants_restart(element, code) and not stopping.heard:
                    element.restarts += 1
                    waiting.append(element)
                else:
                    worst = max(worst, abs(code))
        raise SystemExit(min(worst, 255))

    def _start(self, element: _Element) -> _Element:
        run = SubmissionFolder(Path(self.folder)).run(element.index)
        element.claims = len(numbers(run.journal, "claim"))
        log = run.supervisor_log()
        log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        environment = {
            **os.environ,
            JOB_ID: f"{os.getpid()}_{element.index}",
            RESTART_COUNT: str(element.restarts),
        }
        with log.open("ab") as output:
            element.process = subprocess.Popen(
                _command(self.folder, element.index),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
            )
        return element

    def _wants_restart(self, element: _Element, code: int) -> bool:
        """Restart on request, and like Slurm after a lost node: when the supervisor was killed.

        A supervisor that dies before it can make a claim would do so again; that is not restarted.
        """
        if code == EXIT_REQUEUED:
            return True
        run = SubmissionFolder(Path(self.folder)).run(element.index)
        return code < 0 and len(numbers(run.journal, "claim")) > element.claims


def _command(folder: str, index: int) -> list[str]:
    return [sys.executable, "-m", "hpc_resume", "run", folder, "--index", str(index)]


class _StopFlag:
    """Heard a request to stop; submitit's own handlers are replaced, they would requeue or ignore it."""

    def __init__(self) -> None:
        self.requested = False
        self.heard = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        for number in (signal.SIGUSR2, signal.SIGCONT):
            signal.signal(number, lambda _number, _frame: None)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.requested = self.heard = True


def _forward_stop(element: _Element) -> None:
    if element.process is not None and element.process.poll() is None:
        element.process.send_signal(signal.SIGTERM)
