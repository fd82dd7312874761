"""Folders are searched for logs, and each training is found once."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hpc_resume.errors import ConfigError
from hpc_resume.loss_logs import NoCurveError, find_logs, read_curves, read_log
from hpc_resume.loss_logs.read import LARGEST_UNASKED_BYTES


def write(path: Path, text: str = "1 2.5\n2 2.25\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def state(path: Path, steps: int) -> Path:
    history = [{"step": step, "loss": 5 - step / 100} for step in range(10, steps + 1, 10)]
    return write(path / "trainer_state.json", json.dumps({"global_step": steps, "log_history": history}))


def found(path: Path) -> list[str]:
    return [os.path.relpath(log.files[-1], path) for log in find_logs(path)]


def test_a_file_is_taken_whatever_it_is_called(tmp_path: Path) -> None:
    (log,) = find_logs(write(tmp_path / "losses.of.monday"))
    assert log.certain


def test_of_several_checkpoints_the_newest_is_taken_by_number_and_not_by_name(tmp_path: Path) -> None:
    for steps in (50, 100, 900):
        state(tmp_path / f"checkpoint-{steps}", steps)
    assert found(tmp_path) == ["checkpoint-900/trainer_state.json"]
    assert found(tmp_path / "checkpoint-50") == ["trainer_state.json"]


def test_the_state_at_the_end_is_taken_unless_training_went_on_after_it(tmp_path: Path) -> None:
    state(tmp_path / "checkpoint-900", 900)
    state(tmp_path, 1000)
    assert found(tmp_path) == ["trainer_state.json"]
    state(tmp_path / "checkpoint-1500", 1500)
    assert found(tmp_path) == ["checkpoint-1500/trainer_state.json"]


def test_what_the_trainer_tells_tensorboard_is_the_same_training(tmp_path: Path) -> None:
    state(tmp_path / "sft", 100)
    write(tmp_path / "sft" / "runs" / "Jan01_host" / "events.out.tfevents.1.host")
    write(tmp_path / "other" / "runs" / "Jan01_host" / "events.out.tfevents.1.host")
    assert found(tmp_path) == ["other/runs/Jan01_host/events.out.tfevents.1.host", "sft/trainer_state.json"]


def test_files_are_found_in_folders_below_by_their_names(tmp_path: Path) -> None:
    names = [
        "a/train.log",
        "a/deep/er/b.jsonl.gz",
        "c.csv",
        "d.tsv",
        "slurm-1.out",
        "log.txt",
        "f/train_log.json",
        "mine.json",
    ]
    for name in (
        *names,
        "a/model.safetensors",
        "config.json",
        "a/tokenizer.json",
        "m.safetensors.index.json",
        "train.py",
        ".hidden/e.log",
        "README.md",
    ):
        write(tmp_path / name)
    assert sorted(found(tmp_path)) == sorted(names)
    assert not any(log.certain for log in find_logs(tmp_path))


def test_logs_that_are_compressed_otherwise_are_found_so_that_somebody_hears_of_them(tmp_path: Path) -> None:
    write(tmp_path / "a.csv.xz")
    assert found(tmp_path) == ["a.csv.xz"]


def test_only_json_that_nobody_named_may_be_anything(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.json")
    write(tmp_path / "a.csv")
    assert [(log.files[0].name, log.may_be_anything) for log in find_logs(tmp_path)] == [
        ("a.csv", False),
        ("mine.json", True),
    ]
    assert not find_logs(path)[0].may_be_anything


def test_huge_json_is_read_only_if_somebody_names_it(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    with path.open("wb") as file:
        file.truncate(LARGEST_UNASKED_BYTES + 1)
    (log,) = find_logs(tmp_path)
    with pytest.raises(NoCurveError, match="more than 256 MiB; name it"):
        read_log(log)


def test_a_link_that_leads_back_and_a_pipe_are_left_alone(tmp_path: Path) -> None:
    write(tmp_path / "a.log")
    (tmp_path / "again").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe.log")
    assert found(tmp_path) == ["a.log"]


def test_a_folder_without_anything_like_a_log_is_an_error_that_says_what_was_looked_for(tmp_path: Path) -> None:
    write(tmp_path / "train.py")
    with pytest.raises(ConfigError, match=r"no file below it could be a training log; looked for trainer_state\.json"):
        find_logs(tmp_path)


@pytest.fixture
def submission(tmp_path: Path) -> Path:
    """A submission of ours with one run, which was rewound from step 5 to step 2 in its second attempt."""
    folder = tmp_path / "quickstart"
    run = folder / "run-0000"
    write(folder / "config.yaml", "name: quickstart\n")
    write(folder / "operator-0001.jsonl", "{}\n")
    write(folder / "cluster" / "queue.out", "")
    write(run / "journal" / "attempt-0001.jsonl", "{}\n")
    write(run / "logs" / "attempt-0001" / "rank-0000.out", "step 1: loss 99\n")
    first = [
        {"phase": "load"},
        *({"step": step, "branch": 0, "loss": 10.0 - step} for step in range(1, 6)),
        {"phase": None},
    ]
    second = [{"step": step, "branch": 1, "loss": 20.0 - step, "grad_norm": 0.5} for step in range(3, 5)]
    for number, rows in ((1, first), (2, second)):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        write(run / "metrics" / f"attempt-{number:04d}.jsonl", text)
        write(run / "metrics" / f"attempt-{number:04d}.samples-0000.jsonl", '{"step": 1, "samples": [1]}\n')
    return folder


@pytest.mark.parametrize("below", ["", "run-0000", "run-0000/metrics"])
def test_the_attempts_of_one_of_our_runs_are_the_curve_that_survived(submission: Path, below: str) -> None:
    (log,) = find_logs(submission / below)
    assert [path.name for path in log.files] == ["attempt-0001.jsonl", "attempt-0002.jsonl"]
    (curve,) = read_curves(submission / below)
    assert [(point.step, point.loss) for point in curve.points] == [(1, 9.0), (2, 8.0), (3, 17.0), (4, 16.0)]
    assert [point.grad_norm for point in curve.points] == [None, None, 0.5, 0.5]


def test_one_attempt_alone_is_a_log_like_any_other(submission: Path) -> None:
    (curve,) = read_curves(submission / "run-0000" / "metrics" / "attempt-0001.jsonl")
    assert [point.step for point in curve.points] == [1, 2, 3, 4, 5]


def test_the_curves_of_all_logs_in_a_folder_are_read(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "step,loss\n1,2.5\n")
    state(tmp_path / "b", 20)
    assert [curve.name for curve in read_curves(tmp_path)] == [
        str(tmp_path / "a.csv"),
        str(tmp_path / "b" / "trainer_state.json"),
    ]
