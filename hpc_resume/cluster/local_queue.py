"""The local stand-in for Slurm's queue: one process that starts supervisors, a few at a time, and again on requeue.

submitit's local executor starts this process. It could restart a job by itself, but at most six times and then
ends without a word; here a run is started as long as it asks for it and makes a new claim each time.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpc_resume.cluster.base import EXIT_BUSY, EXIT_INPUT, EXIT_STOPPED
from hpc_resume.cluster.local_allocation import JOB_ID, RESTART_COUNT
from hpc_resume.cluster.local_shares import GPUS
from hpc_resume.cluster.processes import tie_to_parent
from hpc_resume.cluster.stop_signal import StopSignal
from hpc_resume.errors import JournalError
from hpc_resume.journal.folder import RunFolder, SubmissionFolder
from hpc_resume.journal.reader import numbers, read_journal
from hpc_resume.recovery import History
from hpc_resume.recovery.events import ClaimEnded

QUEUE_LOG = "queue.out"
"""What the queue says, in the submission's folder for the cluster's files."""
_POLL_S = 0.1
_MAX_FRUITLESS = 5
_PAUSE_S = 1.0


@dataclass
class _Element:
    """One run, and what is known of its starts."""

    run: RunFolder
    starts: int = 0
    fruitless: int = 0
    """Starts in a row that led to no attempt."""
    not_before: float = 0.0
    """Time on the monotonic clock."""
    claim: int = 0
    """The newest claim that there was before the last start."""
    attempts: int = 0
    """Attempts that there were before the last start."""
    place: int = 0
    """Which of the queue's places it has, while it runs."""
    process: subprocess.Popen[bytes] | None = None

    def exit_code(self) -> int | None:
        """Return how the supervisor ended; None while it runs."""
        return self.process.poll() if self.process is not None else None


@dataclass
class LocalQueue:
    """The runs of one submission on this machine: the description that submitit hands over."""

    folder: str
    runs: list[int]
    parallelism: int
    environment: dict[str, str | None] = field(default_factory=dict)
    """Variables of all runs that this process may not have from the submission itself; None means not set."""
    gpus: list[str] = field(default_factory=list)
    """`CUDA_VISIBLE_DEVICES` for the run in each of the `parallelism` places; empty leaves it as it is."""

    def checkpoint(self) -> Any:
        """Return the same description again: all state is in the journals."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)

    def __call__(self) -> None:
        """Run every element until none is to be started again; end with the worst exit code."""
        stop = StopSignal()
        forwarded = 0
        for name, value in self.environment.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        submission = SubmissionFolder(Path(self.folder))
        waiting = [_Element(submission.run(index)) for index in self.runs]
        running: list[_Element] = []
        worst = 0
        while waiting or running:
            if stop.requests > forwarded:
                forwarded = stop.requests
                waiting.clear()
                for element in running:
                    _forward_stop(element)
            due = [element for element in waiting if element.not_before <= time.monotonic()]
            for element in due[: self.parallelism - len(running)]:
                waiting.remove(element)
                element.place = min(set(range(self.parallelism)) - {other.place for other in running})
                if self._start(element):
                    running.append(element)
                else:
                    worst = max(worst, EXIT_STOPPED)
            time.sleep(_POLL_S)
            for element in list(running):
                code = element.exit_code()
                if code is None:
                    continue
                running.remove(element)
                if not stop.requested and self._starts_again(element, code):
                    waiting.append(element)
                else:
                    worst = max(worst, abs(code))
        raise SystemExit(min(worst, 255))

    def _start(self, element: _Element) -> bool:
        """Start a supervisor, but not for a run that was cancelled."""
        run = element.run
        history = self._read(run)
        if history.cancelled:
            self._say(run, "cancelled by a person; not started")
            return False
        element.claim = max(numbers(run.journal, "claim"), default=0)
        element.attempts = len(history.attempts)
        environment = {
            **os.environ,
            JOB_ID: f"{os.getpid()}_{run.index}",
            RESTART_COUNT: str(element.starts),
        }
        if self.gpus:
            environment[GPUS] = self.gpus[element.place]
        element.starts += 1
        log = run.supervisor_log()
        log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with log.open("ab") as output:
            element.process = subprocess.Popen(
                _command(self.folder, run.index),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                # Without this queue nobody would start it again after a requeue; so it stops cleanly, and can be
                # sent again. The queue has one thread, so that code between fork and exec is safe here.
                preexec_fn=functools.partial(tie_to_parent, os.getpid(), signal.SIGTERM),  # noqa: PLW1509
            )
        return True

    def _starts_again(self, element: _Element, code: int) -> bool:
        """Restart on request, and like Slurm after a lost node: when the supervisor did not end by its own decision.

        That is in the journal; exit codes of a crash and of a decision can be the same. A supervisor that never
        gets as far as an attempt is given a few more tries, at growing distances.
        """
        if code in (EXIT_INPUT, EXIT_BUSY):
            self._leave_word(element.run)
            return False
        history = self._read(element.run)
        ended = _end_of_claim(history, element.claim)
        if ended is not None and ended.outcome != "requeued":
            return False
        if len(history.attempts) > element.attempts:
            element.fruitless = 0
            return True
        element.fruitless += 1
        if element.fruitless >= _MAX_FRUITLESS:
            self._say(
                element.run,
                f"given up: {element.fruitless} starts in a row led to no attempt, the last ended with exit code "
                f"{code}; see {element.run.supervisor_log()}, and when that is mended: "
                f"python -m hpc_resume resubmit {self.folder}",
                also=element.run.supervisor_log(),
            )
            self._leave_word(element.run)
            return False
        pause_s = _PAUSE_S * 2 ** (element.fruitless - 1)
        element.not_before = time.monotonic() + pause_s
        self._say(element.run, f"ended with exit code {code} before any attempt; again in {pause_s:g} s")
        return True

    def _read(self, run: RunFolder) -> History:
        """Read what a run's journal says; one that can't be read must not end the other runs."""
        try:
            return read_journal(run).history
        except (JournalError, OSError) as error:
            self._say(run, f"can't read its journal: {error}")
            return History()

    def _leave_word(self, run: RunFolder) -> None:
        """Tell `status` and `resubmit` that a run is not in this queue any more, which can go on for days."""
        try:
            run.given_up.touch()
        except OSError as error:
            self._say(run, f"can't create {run.given_up}: {error.strerror}; resubmit it once this queue has ended")

    def _say(self, run: RunFolder, text: str, *, also: Path | None = None) -> None:
        """Leave word for people; a full disk must not end the runs."""
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} queue run {run.index}: {text}\n"
        log = run.submission.cluster / QUEUE_LOG
        for path in (log,) if also is None else (log, also):
            try:
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                with path.open("a", encoding="utf-8") as file:
                    file.write(line)
            except OSError:
                continue


def _command(folder: str, index: int) -> list[str]:
    return [sys.executable, "-m", "hpc_resume", "run", folder, "--index", str(index)]


def _end_of_claim(history: History, after: int) -> ClaimEnded | None:
    """Return how the newest supervisor that owned the run since claim `after` said that it ended, if it did."""
    opened = [c for c in history.claims if c.opened and c.request.claim > after]
    ended = opened[-1].ended if opened else None
    return ended if isinstance(ended, ClaimEnded) else None


def _forward_stop(element: _Element) -> None:
    if element.exit_code() is None and element.process is not None:
        element.process.send_signal(signal.SIGTERM)
