"""Whatever is wrong with what a person typed or wrote: one line, the right exit code, and nothing is touched."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_resume.cli.attach import attach
from hpc_resume.cli.submission import create_submission
from hpc_resume.config.load import load_config
from hpc_resume.errors import ConfigError
from hpc_resume.journal.folder import SubmissionFolder

Command = Callable[..., subprocess.CompletedProcess[str]]

MISTAKES = {
    "a config that is not there": (["nowhere.yaml"], "nowhere.yaml: there is no such file"),
    "an unknown key": (["training.stps=3"], "training.stps is not a setting; did you mean training.steps?"),
    "a wrong type": (["training.steps=many"], "training.steps is 'many'; it must be a whole number"),
    "an impossible combination": (["training.warmup_steps=9"], "it must be from 0 to training.steps (8)"),
    "an override that is none": (["steps"], "'steps' is not key=value; write for example training.steps=100"),
    "data that is not there": (["data.paths=[nowhere]"], "/nowhere, which does not exist on this machine"),
    "no data files": (["data.paths=[none]"], "found no files with a known ending for"),
    "a pattern without a match": (["data.paths=[data/*.rst]"], "found no match for"),
    "empty data": (["data.paths=[empty]"], "all 1 files are empty, the first is"),
    "too little data for a batch": (["training.micro_batch_size=4000"], "too little data for one batch: 1 files hold"),
    "a DeepSpeed file that is not there": (["training.deepspeed=no.json"], "no.json, which cannot be read"),
    "a DeepSpeed file that is not JSON": (["training.deepspeed=torn.json"], "torn.json, line 2, column 1: not JSON"),
    "a DeepSpeed file that sets what we set": (
        ["training.deepspeed=batch.json"],
        "train_batch_size is 7, but hpc_resume has 1 (training.micro_batch_size x training.gradient_accumulation_steps"
        ' x the number of ranks); write "auto" there',
    ),
    "Slurm where there is none": (["cluster.kind=slurm"], "there is no `sbatch` on PATH; submit from a login node"),
    "a folder where nothing can be made": (["runs_dir=data/words.txt"], "set runs_dir to a folder you can write to"),
    "a name that is no folder": (["name=../x"], "it must be one folder name"),
}


@pytest.fixture
def mistakes(tmp_path: Path) -> None:
    """The files that the mistakes are about."""
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "picture.png").write_bytes(b"\x89PNG")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "a.txt").touch()
    (tmp_path / "torn.json").write_text('{"zero_optimization": \n')
    (tmp_path / "batch.json").write_text(json.dumps({"train_batch_size": 7}))


def snapshot(folder: Path) -> dict[str, bytes | None]:
    """Return every path below a folder, with what is in it."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def refused(done: subprocess.CompletedProcess[str], expected: str) -> None:
    assert done.stderr.startswith("error: ")
    assert done.stderr.endswith("\n")
    assert len(done.stderr.splitlines()) == 1
    assert expected in done.stderr
    assert done.stdout == ""
    assert done.returncode == 2


@pytest.mark.usefixtures("mistakes")
@pytest.mark.parametrize(("arguments", "expected"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_line_and_creates_nothing(
    tmp_path: Path, config: Path, command: Command, arguments: list[str], expected: str
) -> None:
    before = snapshot(tmp_path)
    target = [] if arguments[0].endswith(".yaml") else [config.name]
    refused(command("submit", *target, *arguments), expected)
    assert snapshot(tmp_path) == before


@pytest.mark.usefixtures("mistakes")
@pytest.mark.parametrize("mistake", ["an unknown key", "no data files", "a DeepSpeed file that sets what we set"])
def test_a_batch_script_hears_of_a_mistake_in_the_same_words(
    tmp_path: Path, config: Path, command: Command, mistake: str
) -> None:
    arguments, expected = MISTAKES[mistake]
    before = snapshot(tmp_path)
    refused(command("run", config, *arguments), expected)
    assert snapshot(tmp_path) == before


@pytest.fixture
def submission(config: Path) -> SubmissionFolder:
    return create_submission(load_config(config))


def test_submitting_under_a_name_that_is_taken_is_refused(
    tmp_path: Path, config: Path, command: Command, submission: SubmissionFolder
) -> None:
    before = snapshot(tmp_path)
    refused(command("submit", config), f"{submission.path} exists already; choose another name (name=...), delete it,")
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("shared", [".", "run-0000"])
def test_a_folder_that_others_can_write_to_is_refused(
    tmp_path: Path, command: Command, submission: SubmissionFolder, shared: str
) -> None:
    path = submission.path / shared
    path.chmod(0o777)
    before = snapshot(tmp_path)
    refused(command("run", submission.path), f"{path} can be written to by others (mode 777); saved state is loaded")
    assert snapshot(tmp_path) == before
    path.chmod(0o700)


def test_run_refuses_a_folder_that_was_made_from_another_config(
    tmp_path: Path, config: Path, command: Command, submission: SubmissionFolder
) -> None:
    before = snapshot(tmp_path)
    refused(
        command("run", config, "training.steps=9"),
        f"{submission.path} was made from another config than {config} now is (compare {submission.config})",
    )
    assert snapshot(tmp_path) == before


@pytest.mark.usefixtures("submission")
def test_run_does_not_change_settings_of_a_folder(tmp_path: Path, command: Command) -> None:
    before = snapshot(tmp_path)
    refused(command("run", "runs/small", "training.steps=9"), "has its config already; settings like training.steps=9")
    assert snapshot(tmp_path) == before


@pytest.mark.usefixtures("submission")
def test_run_refuses_a_run_that_does_not_exist(command: Command) -> None:
    refused(command("run", "runs/small", "--index", 3), "there is no run 3")


NO_SUBMISSIONS = {
    "nothing": ("nowhere", "nowhere does not exist; name such a folder, like runs/quickstart, or the YAML file"),
    "another folder": ("data", "data is not the folder of a submission (it has no config.yaml)"),
    "a config that was not submitted": ("small.yaml", "which does not exist: it was not submitted yet"),
    "a file that is no config": ("data/words.txt", "the file must be a mapping of settings"),
}


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize(("target", "expected"), NO_SUBMISSIONS.values(), ids=NO_SUBMISSIONS)
def test_what_is_no_submission_is_refused(tmp_path: Path, command: Command, target: str, expected: str) -> None:
    before = snapshot(tmp_path)
    refused(command("status", target), expected)
    assert snapshot(tmp_path) == before


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize("verb", ["report", "cancel", "resubmit", "run"])
def test_every_verb_refuses_a_folder_that_is_no_submission(tmp_path: Path, command: Command, verb: str) -> None:
    before = snapshot(tmp_path)
    refused(command(verb, "data"), "data is not the folder of a submission (it has no config.yaml)")
    assert snapshot(tmp_path) == before


@pytest.mark.usefixtures("submission")
@pytest.mark.parametrize(
    ("verb", "runs", "expected"),
    [
        ("cancel", "all", "--runs is 'all'; give numbers and ranges, like 3,7-9"),
        ("cancel", "3-1", "--runs is '3-1'; give numbers and ranges, like 3,7-9"),
        ("cancel", "3-", "--runs is '3-'; give numbers and ranges, like 3,7-9"),
        ("cancel", "", "--runs is ''; give numbers and ranges, like 3,7-9"),
        ("resubmit", "4", "there is no run 4 in"),
    ],
    ids=["a word", "a range that goes down", "half a range", "nothing", "a run that is not there"],
)
def test_runs_that_do_not_exist_are_refused(
    tmp_path: Path, command: Command, verb: str, runs: str, expected: str
) -> None:
    before = snapshot(tmp_path)
    refused(command(verb, "runs/small", "--runs", runs), expected)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["submit"], "Missing argument 'config'; see `python -m hpc_resume submit --help`"),
        (["submt", "x"], "No such command 'submt'. Did you mean"),
        (["status", "x", "--jsn"], "No such option: --jsn"),
        (["run", "x", "--index", "one"], "Invalid value for '--index'"),
    ],
    ids=["no argument", "no such verb", "no such option", "no number"],
)
def test_a_wrong_command_line_is_one_line_too(command: Command, arguments: list[str], expected: str) -> None:
    refused(command(*arguments), expected)


def test_without_a_verb_the_help_is_shown(command: Command) -> None:
    done = command()
    assert done.returncode == 2
    assert done.stderr.startswith("Usage: python -m hpc_resume")


def test_a_file_that_can_not_be_used_is_one_line(command: Command, submission: SubmissionFolder) -> None:
    path = submission.operator(1)
    path.mkdir()
    done = command("cancel", submission.path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: can't use {path}: Is a directory; ")
    assert len(done.stderr.splitlines()) == 1
    assert command("-v", "cancel", submission.path).stderr.startswith("Traceback")


@pytest.mark.usefixtures("submission")
def test_a_full_disk_behind_the_output_is_one_line(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "hpc_resume", "status", "runs/small"],
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
    assert done.returncode == 1
    assert done.stderr.startswith("error: No space left on device; ")
    assert len(done.stderr.splitlines()) == 1


def test_verbose_shows_where_an_error_came_from_and_keeps_the_exit_code(command: Command) -> None:
    done = command("-v", "submit", "nowhere.yaml")
    assert done.returncode == 2
    assert done.stderr.startswith("Traceback")
    assert done.stderr.splitlines()[-1] == "error: nowhere.yaml: there is no such file"


NODE_LOST = "faults=[{kind: node_lost, step: 3}]"


def test_a_drill_that_would_end_a_slurm_job_for_good_is_not_even_planned(
    tmp_path: Path, config: Path, command: Command
) -> None:
    before = snapshot(tmp_path)
    refused(command("submit", "--dry-run", config, "cluster.kind=slurm", NODE_LOST), "faults[0].kind is node_lost")
    assert command("submit", "--dry-run", config, NODE_LOST).returncode == 0
    assert snapshot(tmp_path) == before


def test_a_batch_script_hears_of_it_too(tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    before = snapshot(tmp_path)
    with pytest.raises(ConfigError, match=r"faults\[0\].kind is node_lost"):
        attach(config, ["cluster.kind=auto", NODE_LOST], 0)
    assert snapshot(tmp_path) == before
