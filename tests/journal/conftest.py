"""Run folders, and a supervisor's records by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_resume.journal.folder import RunFolder, make_private
from hpc_resume.recovery import events as ev


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """An empty run folder, inside a submission of its own."""
    run = RunFolder(tmp_path / "submission" / "run-0000")
    make_private(run.journal)
    return run


@pytest.fixture(scope="session")
def request_of() -> Callable[[int], ev.ClaimRequested]:
    """`request_of(claim)`: somebody who asks for a run; its process id is the claim's number plus 100."""

    def make(claim: int) -> ev.ClaimRequested:
        return ev.ClaimRequested(
            claim=claim,
            cluster="local",
            job_id="7",
            restart_count=0,
            host="node1",
            pid=100 + claim,
            boot_id="b",
            start_ticks=1,
        )

    return make


@pytest.fixture(scope="session")
def checkpoint_at() -> Callable[[int, int], ev.Checkpoint]:
    """`checkpoint_at(step, save_number)`: a checkpoint of branch 0 of a run with 8 samples in a step."""

    def make(step: int, save_number: int) -> ev.Checkpoint:
        name = f"step-{step:09d}.s{save_number:06d}"
        return ev.Checkpoint(name=name, step=step, position=step * 8, branch=0, save_number=save_number)

    return make
