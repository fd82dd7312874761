"""A submission of one run that a test fills as it likes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hpc_resume.cluster.local_allocation import LocalAllocation
from hpc_resume.config.load import dump_config
from hpc_resume.config.schema import RunConfig, TrainingConfig
from hpc_resume.journal.folder import RunFolder, SubmissionFolder, make_private
from hpc_resume.journal.writer import JournalWriter
from hpc_resume.recovery import events as ev
from hpc_resume.recovery.decisions import Decision, Plan

START = Decision(
    number=1, action="launch", rule="first start", reason="", plan=Plan(checkpoint=None, step=0, position=0, branch=0)
)


@pytest.fixture
def config() -> RunConfig:
    """The settings of the run."""
    return RunConfig(name="small", training=TrainingConfig(steps=1_000_000))


@pytest.fixture
def folder(tmp_path: Path, config: RunConfig) -> RunFolder:
    """The run's folder; the submission has its config, and was sent."""
    run = SubmissionFolder(tmp_path / "small").run(0)
    make_private(run.journal)
    run.metrics(1).parent.mkdir()
    run.submission.config.write_text(dump_config(config), encoding="utf-8")
    JournalWriter(run.submission.operator(1), ev.Submitted(runs=(0,), cluster="local")).close()
    return run


@pytest.fixture
def request_of() -> Callable[..., ev.ClaimRequested]:
    """`request_of(claim, alive=...)`: this test's own process, or one that is gone, asks for the run."""

    def make(claim: int, *, alive: bool) -> ev.ClaimRequested:
        me = LocalAllocation().request(claim)
        # The same process id, given to a process that started at another time.
        return me if alive else replace(me, start_ticks=me.start_ticks + 1)

    return make


@pytest.fixture
def owner(folder: RunFolder, request_of: Callable[..., ev.ClaimRequested]) -> Iterator[JournalWriter]:
    """A supervisor that lives: its run has begun its first attempt."""
    writer = JournalWriter(folder.claim(1), request_of(1, alive=True))
    writer.record(ev.ClaimOpened(claim=1, committed=()))
    writer.record(ev.Decided(decision=START))
    writer.record(ev.AttemptStarted(attempt=1, claim=1, data_seed=0, host="n"))
    writer.record(ev.Resumed(attempt=1, checkpoint=None, step=0, position=0, first_samples=()))
    yield writer
    writer.close()
