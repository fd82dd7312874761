"""`export`: which checkpoint of which run, in one line where that can't be, and a folder where it can."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_resume.cli.export import _in_a_process
from hpc_resume.errors import ExportError
from hpc_resume.journal.folder import RunFolder, SubmissionFolder

Command = Callable[..., subprocess.CompletedProcess[str]]
MakeRuns = Callable[..., SubmissionFolder]

NAME = "step-000000004.s000001"


def refused(done: subprocess.CompletedProcess[str], code: int, message: str) -> None:
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("state", "arguments", "code", "message"),
    [
        ("waiting", [], 1, "this run has no checkpoint so far"),
        (
            "running",
            [],
            1,
            f"this run has no healthy checkpoint so far; the newest, {NAME}: not certified yet: only 1 of",
        ),
        ("running", ["--step", "4"], 2, f"{NAME} is not exported: not certified yet: only 1 of 50 healthy steps have"),
        ("failed", ["--step", "5"], 2, "there is no checkpoint of step 5; there are those of step 4"),
        ("running", ["--step", "4", "--force"], 1, f"{NAME} is gone; choose another one with --step"),
        ("finished", ["--step", "x"], 2, "Invalid value for '--step'"),
        ("finished", ["--runs", "3"], 2, "there is no run 3 in"),
        ("finished", ["--output", "."], 2, "exists already; delete it, or name another folder with --output"),
    ],
    ids=[
        "nothing saved",
        "nothing certified",
        "not certified",
        "no such step",
        "gone",
        "no step",
        "no run",
        "is there",
    ],
)
def test_what_can_not_be_exported_is_refused_in_one_line(
    command: Command, make_runs: MakeRuns, state: str, arguments: list[str], code: int, message: str
) -> None:
    done = command("export", make_runs(state).run(0).path, *arguments)
    refused(done, code, message)


def test_of_several_runs_one_must_be_named(command: Command, make_runs: MakeRuns) -> None:
    folder = make_runs("finished", "finished")
    message = f"2 runs that are meant, and `export` takes one: name its folder, like {folder.run(0).path}, or --runs 0"
    refused(command("export", folder.path), 2, message)
    refused(command("export", folder.path, "--runs", "1"), 1, f"{folder.run(1).checkpoints / NAME} is gone")


def test_an_error_of_the_process_that_exports_is_one_line_with_its_exit_code(
    command: Command, make_runs: MakeRuns, tmp_path: Path
) -> None:
    run = make_runs("finished").run(0)
    (run.checkpoints / NAME).mkdir()
    done = command("export", run.path, "--output", "model")
    refused(done, 1, f"checkpoint {NAME} is damaged: its manifest is missing; choose another one (--step)")
    assert not (tmp_path / "model").exists()


def test_a_process_that_is_killed_is_an_error_that_says_what_may_be_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nkill -KILL $$\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(ExportError, match=r"^the export was ended by SIGKILL; was memory short\?$"):
        _in_a_process(RunFolder(tmp_path), NAME, tmp_path / "model", force=False)
