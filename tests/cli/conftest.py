"""A small config, the command line as a process, and run folders in every state."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hpc_resume.cli.submission import create_submission, record_operator
from hpc_resume.cluster.local_allocation import LocalAllocation
from hpc_resume.cluster.processes import start_ticks
from hpc_resume.config.load import load_config
from hpc_resume.journal.folder import SubmissionFolder
from hpc_resume.journal.writer import JournalWriter
from hpc_resume.recovery import events as ev
from hpc_resume.recovery.decisions import Decision, Plan

Command = Callable[..., subprocess.CompletedProcess[str]]
MakeRuns = Callable[..., SubmissionFolder]

CHECKPOINT = ev.Checkpoint(name="step-000000004.s000001", step=4, position=4, branch=0, save_number=1)
START = Decision(
    number=1, action="launch", rule="first start", reason="", plan=Plan(checkpoint=None, step=0, position=0, branch=0)
)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A config that could be submitted; nothing of it has been."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "words.txt").write_text("hello world " * 200)
    path = tmp_path / "small.yaml"
    path.write_text(
        "runs_dir: runs\n"
        "cluster: {kind: local}\n"
        "data: {paths: [data], sequence_tokens: 16}\n"
        "training: {steps: 8, precision: fp32}\n"
    )
    return path


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """Run `python -m hpc_resume` in the test's folder, with no `sbatch` on PATH."""

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PATH": str(tmp_path / "no programs here")}
        return subprocess.run(
            [sys.executable, "-m", "hpc_resume", *map(str, arguments)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    return run


@pytest.fixture
def make_runs(config: Path) -> MakeRuns:
    """Make a submission whose runs are in these states, as commands and supervisors would have left it."""

    def make(*states: str) -> SubmissionFolder:
        folder = create_submission(load_config(config, [f"sweep={{seed: {list(range(len(states)))}}}"]))
        for index, state in enumerate(states):
            _send(folder, index, alive=state in ("waiting", "requeued", "running"))
            if state not in ("waiting", "never started", "cancelled before its start"):
                _own(folder, index, state)
            if state.startswith("cancelled"):
                writer = record_operator(folder, ev.CancelRequested(runs=(index,)))
                writer.record(ev.OperatorOutcome(ok=True, job_id="", message="recorded"))
                writer.close()
        return folder

    return make


def _send(folder: SubmissionFolder, index: int, *, alive: bool) -> None:
    writer = record_operator(folder, ev.Submitted(runs=(index,), cluster="local"))
    # This test's own process stands for a queue that is still there.
    ticks = start_ticks(os.getpid()) if alive else 1
    writer.record(ev.OperatorOutcome(ok=True, job_id=f"{os.getpid()}:{ticks}", message="submitted"))
    writer.close()


def _own(folder: SubmissionFolder, index: int, state: str) -> None:
    run = folder.run(index)
    me = LocalAllocation().request(1)
    if state == "out of reach":
        me = replace(me, boot_id="there", host="elsewhere")
    writer = JournalWriter(run.claim(1), me if state in ("running", "out of reach") else replace(me, start_ticks=1))
    for event in (
        ev.ClaimOpened(claim=1, committed=()),
        ev.Decided(decision=START),
        ev.AttemptStarted(attempt=1, claim=1, data_seed=index, host=me.host),
        ev.Resumed(attempt=1, checkpoint=None, step=0, position=0, first_samples=(1, 2)),
        ev.CheckpointCommitted(attempt=1, checkpoint=CHECKPOINT),
        *_endings(state, str(run.model)),
    ):
        writer.record(event)
    writer.close()
    run.metrics(1).parent.mkdir(parents=True)
    rows = [f'{{"step":{step},"loss":{3 - step / 10},"step_s":0.5}}\n' for step in range(1, 6)]
    run.metrics(1).write_text("".join(rows))
    run.supervisor_log().parent.mkdir(parents=True)
    run.supervisor_log().write_text("supervisor launch: first start\nsupervisor out of [paper]\n")


def _endings(state: str, model: str) -> tuple[ev.Event, ...]:
    def ended(cause: ev.Cause, message: str) -> ev.AttemptEnded:
        return ev.AttemptEnded(attempt=1, cause=cause, message=message)

    def stopped(rule: str, reason: str, outcome: ev.ClaimOutcome) -> tuple[ev.Event, ...]:
        assert outcome != "requeued"
        decision = Decision(number=2, action="stop", rule=rule, reason=reason, outcome=outcome)
        return ev.Decided(decision=decision), ev.ClaimEnded(claim=1, outcome=outcome, message=reason)

    match state:
        case "finished":
            done = ev.RunFinished(attempt=1, step=8, position=8, loss=2.25, weights_digest="", model=model)
            return done, ended("finished", "finished at step 8"), *stopped("finished", "finished at step 8", "finished")
        case "failed":
            reason = "rank 0: OSError: [Errno 28] No space left on device"
            return ended("crash", reason), *stopped("same crash twice", reason, "failed")
        case "stopped":
            return ended("terminated", "saved at step 4"), *stopped("asked to stop", "saved at step 4", "stopped")
        case "cancelled":
            return ended("cancelled", "cancelled by a person"), *stopped("cancelled", "by a person", "cancelled")
        case "requeued":
            plan = Plan(checkpoint=CHECKPOINT.name, step=4, position=4, branch=0)
            decision = Decision(number=2, action="requeue", rule="preempted", reason="", plan=plan)
            return (
                ended("preempted", "left at step 5"),
                ev.Decided(decision=decision),
                ev.ClaimEnded(claim=1, outcome="requeued", message="preempted"),
            )
        case "running" | "lost" | "out of reach":
            return ()
    raise ValueError(f"no run can be {state}")
