"""Runs whose ranks follow a script: supervisors, launchers and ranks are real processes, only the training is not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hpc_resume.checkpoints import catalog
from hpc_resume.cli.submission import newest_command
from hpc_resume.cluster.base import EXIT_REQUEUED
from hpc_resume.cluster.local_allocation import JOB_ID, RESTART_COUNT
from hpc_resume.config.cluster_section import ClusterConfig
from hpc_resume.config.load import dump_config
from hpc_resume.config.schema import RunConfig, SupervisorConfig, TrainingConfig
from hpc_resume.journal.folder import RunFolder, SubmissionFolder, make_private
from hpc_resume.journal.metrics import read_rows
from hpc_resume.journal.reader import Journal, numbers, read_journal
from hpc_resume.journal.writer import JournalWriter
from hpc_resume.recovery import History, fold
from hpc_resume.recovery import events as ev
from hpc_resume.recovery.policy import Policy

HERE = Path(__file__).parent
MARK = "HPC_RESUME_TEST_MARK"
LIMIT_S = 30.0
"""Nothing here takes this long unless it is broken."""


def wait_until(condition: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> None:
    """Poll until it holds; fail with `what` after the limit."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"after {limit_s:.0f} s still not: {what}"
        time.sleep(0.01)


def marked_processes(mark: str) -> list[int]:
    """Return all living processes that were started with this mark in their environment."""
    needle = f"{MARK}={mark}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            environment = (path / "environ").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if needle in environment:
            found.append(int(path.name))
    return found


def end_marked(mark: str) -> list[int]:
    """End whatever a test left behind, and return it; what is about to leave by itself gets the time for that."""
    deadline = time.monotonic() + 3.0
    while (left := marked_processes(mark)) and time.monotonic() < deadline:
        time.sleep(0.02)
    while stubborn := marked_processes(mark):
        for pid in stubborn:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)
    return left


@dataclass
class ScriptedRun:
    """One run on this machine, and whoever supervises it."""

    folder: RunFolder
    mark: str
    started: list[subprocess.Popen[str]] = field(default_factory=list)
    launcher: str = str(HERE / "stand_in")
    """Where torchrun is found first; empty for the real one."""

    @property
    def journal(self) -> Journal:
        return read_journal(self.folder)

    @property
    def history(self) -> History:
        return self.journal.history

    @property
    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if k not in (JOB_ID, RESTART_COUNT)}
        return {**kept, MARK: self.mark, "PYTHONPATH": self.launcher}

    def start(self, **options: Any) -> subprocess.Popen[str]:
        """Start a supervisor; see run_supervisor.py for the options."""
        return self.start_command(self.command(**options))

    def command(self, **options: Any) -> list[str]:
        """What to start Python with for a supervisor."""
        return [str(HERE / "run_supervisor.py"), str(self.folder.path), json.dumps(options)]

    def start_command(self, arguments: list[str]) -> subprocess.Popen[str]:
        """Start a Python program that belongs to this run."""
        process = subprocess.Popen(
            [sys.executable, *arguments],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def supervise(self, **options: Any) -> int:
        """Let a supervisor do all it wants; return its exit code."""
        return end_of(self.start(**options))[0]

    def supervise_to_the_end(self, **options: Any) -> list[int]:
        """Start supervisors, as the queue does, until one leaves for good; return their exit codes."""
        codes: list[int] = []
        while not codes or codes[-1] in (EXIT_REQUEUED, -signal.SIGKILL):
            assert len(codes) < 12, f"these supervisors never come to an end: {codes}"
            codes.append(self.supervise(**options))
        return codes

    def say(self, word: str) -> None:
        """Let ranks go on that wait for this word."""
        (self.folder.submission.path / word).touch()

    def wait_for_word(self, word: str) -> None:
        """Wait until a rank says this."""
        wait_until((self.folder.submission.path / word).exists, f"a rank says {word!r}")

    def wait_for_event(self, kind: type[ev.Event], count: int = 1) -> None:
        """Wait until the journal holds so many events of a kind."""
        wait_until(lambda: len(self.events(kind)) >= count, f"{count} x {kind.__name__} in the journal")

    def events(self, kind: type[Any]) -> list[Any]:
        """All events of a kind, in the journal's order."""
        return [record.event for record in self.journal.records if isinstance(record.event, kind)]

    def operator(self, *events: ev.Event) -> None:
        """Record what a command of a person records."""
        taken = numbers(self.folder.submission.path, "operator")
        path = self.folder.submission.operator(taken[-1] + 1 if taken else 1)
        writer = JournalWriter(path, events[0])
        for event in events[1:]:
            writer.record(event)
        writer.close()

    def cancel(self) -> None:
        """Do what `cancel` does."""
        self.operator(ev.CancelRequested(runs=(0,), operator=newest_command(self.folder.submission) + 1))

    def resubmit(self, *, cancelled: bool = False) -> None:
        """Do what `resubmit` does, but for starting a supervisor."""
        last = self.history.next_decision - 1
        lifts = newest_command(self.folder.submission) if cancelled else None
        self.operator(ev.ResubmitRequested(runs=(0,), after={"0": last}, cluster="local", lifts=lifts))

    def ranks(self, attempt: int) -> list[dict[str, Any]]:
        """What the ranks of an attempt said of themselves."""
        reports = self.folder.rank_report(attempt, 0).parent
        return [json.loads(path.read_text()) for path in sorted(reports.glob("rank-*.json"))]

    def steps(self, attempt: int) -> list[int]:
        """The steps that an attempt trained."""
        return [row["step"] for row in read_rows(self.folder.metrics(attempt)) if "step" in row]

    def saved(self) -> list[int]:
        """Steps of the usable checkpoints."""
        return [checkpoint.step for checkpoint in self.history.lineage]

    def check(self, *, cut_off: bool = False) -> None:
        """Hold what must hold of every run, whatever happened to it; `cut_off` ranks could not be ended in time."""
        journal = self.journal
        history = journal.history
        assert journal.torn == 0
        for ascending in (
            [c.request.claim for c in history.claims],
            [a.started.attempt for a in history.attempts],
            [d.number for d in history.decisions],
        ):
            assert ascending == sorted(set(ascending))
        assert all(a.ended is not None for a in history.attempts)
        company = list(self.folder.submission.path.glob("company-*"))
        assert bool(company) == cut_off, "an attempt found ranks of another one still running"
        saves = [c.save_number for c in history.known.values()]
        assert len(saves) == len(set(saves))
        for checkpoint in history.lineage:
            manifest = catalog.read_manifest(self.folder.checkpoints, checkpoint.name)
            assert catalog.find_damage(self.folder.checkpoints, manifest) is None
        on_disk = {p.name.removeprefix("quarantined.") for p in self.folder.checkpoints.iterdir()}
        vanished = set(history.known) - on_disk - set(history.rejected) - history.deleted
        assert not vanished, "a checkpoint was lost"
        for index, record in enumerate(journal.records):
            if isinstance(record.event, ev.Resumed) and record.event.checkpoint is None:
                known = fold(r.event for r in journal.records[:index]).known
                assert not known, "a run with progress started from scratch"
        assert marked_processes(self.mark) == []


def end_of(process: subprocess.Popen[str], limit_s: float = LIMIT_S) -> tuple[int, str, str]:
    """Wait for a process; return exit code, output and errors."""
    output, errors = process.communicate(timeout=limit_s)
    return process.returncode, output, errors


@contextmanager
def scripted_runs(tmp_path: Path) -> Iterator[Callable[..., ScriptedRun]]:
    """Give what makes runs; see that no process of theirs is left at the end."""
    made: list[ScriptedRun] = []

    def make(*actions: dict[str, Any], **settings: Any) -> ScriptedRun:
        made.append(make_run(tmp_path / str(len(made)), *actions, **settings))
        return made[-1]

    yield make
    left = [pid for run in made for pid in end_marked(run.mark)]
    for run in made:
        for process in run.started:
            process.communicate()
    assert left == [], "processes were left behind"


def make_run(
    tmp_path: Path,
    *actions: dict[str, Any],
    steps: int = 12,
    save_every: int = 2,
    certify_after: int = 2,
    ranks: int = 1,
    policy: dict[str, Any] | None = None,
    **supervisor: float,
) -> ScriptedRun:
    """Make the folder of a submission with one run that follows a script."""
    rules = Policy(**{"rollback_margin_steps": 1, **(policy or {})})
    watching = {"hang_min_s": 20.0, "hang_step_factor": 1.0, "phase_limit_s": 20.0, "stop_grace_s": 20.0}
    config = RunConfig(
        name="scripted",
        runs_dir=str(tmp_path),
        cluster=ClusterConfig(kind="local", ranks_per_node=ranks),
        training=TrainingConfig(steps=steps),
        recovery=rules,
        supervisor=SupervisorConfig(**{**watching, **supervisor}),
    )
    submission = SubmissionFolder(tmp_path / "scripted")
    run = submission.run(0)
    make_private(submission.path)
    for folder in (run.path, run.journal, run.checkpoints):
        make_private(folder)
    submission.config.write_text(dump_config(config))
    script = {
        "steps": steps,
        "save_every": save_every,
        "certify_after": certify_after,
        "policy": asdict(rules),
        "actions": actions,
    }
    (submission.path / "script.json").write_text(json.dumps(script))
    return ScriptedRun(run, uuid.uuid4().hex)
