from __future__ import annotations

import json
import sysconfig
from pathlib import Path

import pytest

from hpc_resume.config.load import dump_config, load_config
from hpc_resume.config.schema import FaultConfig, RunConfig


def write(folder: Path, text: str, name: str = "run.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_the_file_goes_before_the_defaults_and_the_command_line_before_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "training: {steps: 5, micro_batch_size: 2}\n")
    config = load_config(path, ["training.steps=7"])
    assert config.training.steps == 7
    assert config.training.micro_batch_size == 2
    assert config.training.learning_rate == RunConfig().training.learning_rate


def test_the_name_is_the_files_unless_it_is_set(tmp_path: Path) -> None:
    path = write(tmp_path, "seed: 1\n", "llama-7b.v2.yaml")
    assert load_config(path).name == "llama-7b.v2"
    assert load_config(path, ["name=other"]).name == "other"


@pytest.mark.parametrize("text", ["007", "1e-3", "true"])
def test_text_on_the_command_line_stays_the_text_that_was_typed(tmp_path: Path, text: str) -> None:
    assert load_config(write(tmp_path, "seed: 1\n"), [f"name={text}"]).name == text


def test_numbers_may_be_written_with_an_exponent(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, "training: {steps: 1e3, learning_rate: 1e-4}\n"))
    assert config.training.steps == 1000
    assert config.training.learning_rate == 1e-4


def test_lists_of_sections_become_tuples_of_checked_sections(tmp_path: Path) -> None:
    path = write(tmp_path, "faults:\n- kind: spike\n  step: 4\n- {kind: nan, step: 9}\n")
    assert load_config(path).faults == (FaultConfig(kind="spike", step=4), FaultConfig(kind="nan", step=9))


def test_a_model_that_is_named_gets_no_model_type_from_the_default_model(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, "model: {name_or_path: some/hub-model}\n"))
    assert config.model.config == {}


def test_an_override_inside_a_free_mapping_keeps_its_other_keys(tmp_path: Path) -> None:
    path = write(tmp_path, "model: {config: {model_type: llama, hidden_size: 4}}\n")
    config = load_config(path, ["model.config.hidden_size=8"])
    assert config.model.config == {"model_type": "llama", "hidden_size": 8}


def test_an_override_of_a_free_mapping_replaces_it(tmp_path: Path) -> None:
    path = write(tmp_path, "model: {config: {model_type: llama, hidden_size: 4}}\n")
    assert load_config(path, ["model.config={model_type: gpt2}"]).model.config == {"model_type": "gpt2"}


def test_settings_may_refer_to_others_even_to_those_at_their_defaults(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, "training: {steps: '${checkpoints.interval_steps}'}\n"))
    assert config.training.steps == RunConfig().checkpoints.interval_steps


def test_paths_in_the_file_start_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    path = write(tmp_path / "configs", "runs_dir: ../runs\ndata: {paths: [a.txt, ../b/*.txt, /c]}\n")
    config = load_config(path)
    assert config.runs_dir == str(tmp_path / "runs")
    assert config.data.paths == (str(tmp_path / "configs/a.txt"), str(tmp_path / "b/*.txt"), "/c")


def test_paths_on_the_command_line_start_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "here").mkdir()
    path = write(tmp_path / "configs", "data: {paths: [a.txt]}\n")
    monkeypatch.chdir(tmp_path / "here")
    config = load_config(Path("../configs") / path.name, ["data.paths=[b.txt]", "runs_dir=runs"])
    assert config.data.paths == (str(tmp_path / "here/b.txt"),)
    assert config.runs_dir == str(tmp_path / "here/runs")


def test_the_default_folder_of_the_runs_is_beside_the_file(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, "seed: 1\n")).runs_dir == str(tmp_path / "runs")


def test_two_dots_step_out_of_the_folder_that_a_link_leads_to(tmp_path: Path) -> None:
    (tmp_path / "real" / "configs").mkdir(parents=True)
    write(tmp_path / "real" / "configs", "runs_dir: ../runs\n")
    (tmp_path / "link").symlink_to(tmp_path / "real" / "configs")
    assert load_config(tmp_path / "link" / "run.yaml").runs_dir == str(tmp_path.resolve() / "real" / "runs")


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert load_config(write(tmp_path, "runs_dir: ~/runs\n")).runs_dir == str(tmp_path / "home/runs")


def test_the_sources_of_python_can_be_named(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, "data: {paths: ['${python_stdlib:}/*.py']}\n"))
    assert config.data.paths == (sysconfig.get_path("stdlib") + "/*.py",)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        pytest.param("bytes", "bytes", id="the byte tokenizer"),
        pytest.param("org/model", "org/model", id="a hub name"),
        pytest.param("local", "{}/local", id="a folder that exists"),
        pytest.param("./missing", "{}/missing", id="a folder that does not exist yet"),
    ],
)
def test_a_tokenizer_is_a_path_only_when_it_looks_like_one(tmp_path: Path, written: str, expected: str) -> None:
    (tmp_path / "local").mkdir()
    (tmp_path / "bytes").mkdir()
    config = load_config(write(tmp_path, f"model: {{tokenizer: {written}, config: {{model_type: llama}}}}\n"))
    assert config.model.tokenizer == expected.format(tmp_path)


def test_a_deepspeed_file_is_read_once_when_the_config_is_loaded(tmp_path: Path) -> None:
    file = write(tmp_path, json.dumps({"zero_optimization": {"stage": 2}}), "zero.json")
    config = load_config(write(tmp_path, "training: {deepspeed: zero.json}\n"))
    file.unlink()
    assert config.training.deepspeed == {"zero_optimization": {"stage": 2}}
    again = load_config(write(tmp_path, dump_config(config)))
    assert again == config


def test_deepspeed_may_stand_in_the_config_itself(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, "training: {deepspeed: {zero_optimization: {stage: 1}}}\n"))
    assert config.training.deepspeed == {"zero_optimization": {"stage": 1}}


FULL = """
name: full
runs_dir: ../elsewhere
cluster: {kind: slurm, nodes: 2, partition: '007', sbatch: {constraint: 'a100&nvlink', nice: 10}}
model: {config: {model_type: llama, rope: null, note: 'a: "b" # c', version: '1e3', template: '\\${x}'}, tokenizer: x/y}
data: {paths: ['*.txt'], max_samples: 10}
training: {deepspeed: zero.json, learning_rate: 1e-5, min_learning_rate: 1e-7, adam_betas: [0.8, 0.99]}
monitor: {loss_watchdog_threshold: 5}
recovery: {perturb_on: [loss]}
faults: [{kind: rank_kill, step: 3, rank: 1}]
sweep:
  training.learning_rate: [1e-4, 3e-4]
  model.config.hidden_size: [64, 128]
  data.paths: [[a.txt], [b.txt]]
  training.deepspeed: [zero.json, null]
"""


def test_a_dumped_config_loads_to_an_equal_one_wherever_it_lies(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "runs").mkdir()
    write(
        tmp_path / "configs",
        '{"zero_optimization": {"stage": 2, "lr": 1e-05}, "train_batch_size": "auto"}',
        "zero.json",
    )
    config = load_config(write(tmp_path / "configs", FULL))
    assert config.model.config["template"] == "${x}"
    assert load_config(write(tmp_path / "runs", dump_config(config), "config.yaml")) == config


def test_the_default_config_survives_a_dump(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, "seed: 0\n"))
    assert load_config(write(tmp_path, dump_config(config), "other.yaml")) == config
