from __future__ import annotations

from pathlib import Path

import pytest

from hpc_resume.config.load import load_config
from hpc_resume.config.schema import RunConfig
from hpc_resume.config.sweep import describe, expand
from hpc_resume.errors import ConfigError


def test_without_a_sweep_there_is_one_run() -> None:
    config = RunConfig(name="one")
    assert expand(config) == (config,)
    assert describe(config, 0) == {}


def test_the_grid_has_the_order_of_the_file_with_the_last_key_fastest() -> None:
    config = RunConfig(sweep={"training.learning_rate": [0.1, 0.2], "seed": [1, 2, 3]})
    runs = expand(config)
    assert [(run.training.learning_rate, run.seed) for run in runs] == [
        (0.1, 1),
        (0.1, 2),
        (0.1, 3),
        (0.2, 1),
        (0.2, 2),
        (0.2, 3),
    ]
    assert all(run.sweep == {} for run in runs)
    assert describe(config, 4) == {"training.learning_rate": 0.2, "seed": 2}


def test_what_is_not_swept_stays_as_it_was() -> None:
    config = RunConfig(name="x", sweep={"model.config.hidden_size": [8, 16]})
    first, second = expand(config)
    assert first.model.config == {"model_type": "llama", "hidden_size": 8}
    assert second.model.config == {"model_type": "llama", "hidden_size": 16}
    assert config.model.config == {"model_type": "llama"}
    assert first.name == "x"


def test_true_and_1_are_two_values() -> None:
    assert len(expand(RunConfig(sweep={"model.config.tie_word_embeddings": [True, 1]}))) == 2


def test_swept_paths_start_from_the_files_folder_and_swept_deepspeed_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "zero.json").write_text('{"zero_optimization": {"stage": 1}}')
    path = tmp_path / "c.yaml"
    path.write_text("sweep: {training.deepspeed: [zero.json, null], data.paths: [[a.txt], [b.txt]]}\n")
    runs = expand(load_config(path))
    assert [run.data.paths for run in runs] == [(f"{tmp_path}/a.txt",), (f"{tmp_path}/b.txt",)] * 2
    assert [run.training.deepspeed for run in runs][1:3] == [{"zero_optimization": {"stage": 1}}, None]


def test_a_key_inside_deepspeeds_settings_can_be_swept() -> None:
    runs = expand(RunConfig(sweep={"training.deepspeed.zero_optimization.stage": [1, 2]}))
    assert [run.training.deepspeed for run in runs] == [{"zero_optimization": {"stage": stage}} for stage in (1, 2)]


def test_a_sweep_can_be_given_on_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("seed: 1\n")
    assert load_config(path, ["sweep.training.steps=[1,2]"]).sweep == {"training.steps": [1, 2]}


IGNORED = {
    "the swept key": (["seed=3"], "seed is swept by the file; override sweep instead, like 'sweep={seed: [...]}'"),
    "a key inside of a swept one": (
        ["training.deepspeed.gradient_clipping=1.0"],
        "training.deepspeed.gradient_clipping is swept by the file; override sweep instead, "
        "like 'sweep={training.deepspeed: [...]}'",
    ),
    "a sweep on the command line": (
        ["training.steps=3", "sweep.training.steps=[1, 2]"],
        "training.steps is swept on the command line, too; override sweep instead, "
        "like 'sweep={training.steps: [...]}'",
    ),
}


@pytest.mark.parametrize(("overrides", "expected"), IGNORED.values(), ids=IGNORED)
def test_an_override_that_the_sweep_would_replace_is_refused(
    tmp_path: Path, overrides: list[str], expected: str
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("sweep: {seed: [1, 2], training.deepspeed: [null, {}]}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    assert str(caught.value) == f"on the command line: {expected}"


def test_the_sweep_itself_and_what_is_around_a_swept_value_can_be_overridden(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("sweep: {seed: [1, 2], model.config.hidden_size: [8, 16]}\n")
    config = load_config(path, ["sweep.seed=[3]", "model.config={model_type: gpt2}"])
    assert [(run.seed, run.model.config["model_type"]) for run in expand(config)] == [(3, "gpt2")] * 2


REFUSED = {
    "the same value twice": ({"seed": [2, 1, 2]}, "sweep.seed has 2 twice, which gives the same run twice; leave one"),
    "name": ({"name": ["a"]}, "sweep.name cannot be swept; all runs of a sweep share name, runs_dir, cluster, sweep"),
    "runs_dir": ({"runs_dir": ["a"]}, "sweep.runs_dir cannot be swept"),
    "cluster": ({"cluster.nodes": [1, 2]}, "sweep.cluster.nodes cannot be swept"),
    "sweep": ({"sweep": [{}]}, "sweep.sweep cannot be swept"),
    "one value": ({"seed": 3}, "sweep.seed is 3; it must be a list of values, such as [3]"),
    "no value": ({"seed": []}, "sweep.seed is an empty list, which leaves no run"),
    "nested keys": ({"training": {"steps": [1]}}, "sweep.training is a mapping; write the key with dots"),
    "a section": ({"training": [1]}, "sweep: training is a whole section"),
    "an unknown key": ({"training.step": [1]}, "sweep: training.step is not a setting; did you mean training.steps?"),
    "a wrong type": (
        {"seed": [1], "training.steps": [5, "a"]},
        "sweep, run with seed=1, training.steps='a': training.steps is 'a'; it must be a whole number",
    ),
    "an impossible combination": (
        {"training.steps": [5], "training.warmup_steps": [9]},
        "sweep, run with training.steps=5, training.warmup_steps=9: training.warmup_steps is 9; it must be from 0 to",
    ),
}


@pytest.mark.parametrize(("sweep", "expected"), REFUSED.values(), ids=REFUSED)
def test_a_sweep_that_makes_no_sense_is_refused_in_one_line(sweep: dict[str, object], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        expand(RunConfig(sweep=sweep))
    assert str(caught.value).startswith(expected)
    assert "\n" not in str(caught.value)


def test_a_wrong_sweep_is_found_when_the_file_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("seed: 1\nsweep:\n  training.steps: [5, 0]\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value) == f"{path}:2: sweep, run with training.steps=0: training.steps is 0; it must be above 0"
