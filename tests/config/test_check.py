from __future__ import annotations

from pathlib import Path

import pytest

from hpc_resume.config.check import check_before_submit
from hpc_resume.config.load import load_config
from hpc_resume.errors import ConfigError


def prepared(folder: Path, *overrides: str, kind: str = "local") -> None:
    (folder / "data.txt").write_text("word " * 1000)
    (folder / "empty.txt").write_text("")
    (folder / "model").mkdir()
    path = folder / "c.yaml"
    path.write_text("data: {paths: [data.txt], sequence_tokens: 16}\n")
    check_before_submit(load_config(path, overrides), kind)


def test_a_run_that_can_start_passes(tmp_path: Path) -> None:
    prepared(tmp_path)


BAD = {
    "no data": (["data.paths=[]"], "data.paths is empty"),
    "missing data": (["data.paths=[/nowhere/x.txt]"], "/nowhere/x.txt"),
    "empty data": (["data.paths=[{}/empty.txt]"], "empty"),
    "too little data for a batch": (["training.micro_batch_size=100000"], "too little data for one batch"),
    "a contradiction with DeepSpeed": (["training.deepspeed={{gradient_clipping: 7}}"], "gradient_clipping is 7"),
    "a missing model": (
        ["model.name_or_path=./nowhere", "model.config={{}}"],
        "nowhere, which does not exist on this machine",
    ),
    "a folder that is no model": (["model.name_or_path={}/model"], "/model, which has no config.json"),
    "a tokenizer that is a file": (
        ["model.tokenizer={}/data.txt", "model.config.model_type=llama"],
        "data.txt, which is not a folder",
    ),
    "one run of a sweep": (
        ["sweep.training.micro_batch_size=[1,100000]"],
        "(in the run of the sweep with training.micro_batch_size=100000)",
    ),
}


@pytest.mark.parametrize(("overrides", "expected"), BAD.values(), ids=BAD)
def test_what_would_fail_at_the_start_is_refused_before(tmp_path: Path, overrides: list[str], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        prepared(tmp_path, *(override.format(tmp_path) for override in overrides))
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", ["model.name_or_path", "model.tokenizer"])
@pytest.mark.parametrize("given", ["in the file", "on the command line"])
def test_a_name_in_a_folder_that_is_there_is_a_path_and_not_a_hub_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, given: str
) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "data.txt").write_text("word " * 1000)
    monkeypatch.chdir(tmp_path if given == "on the command line" else tmp_path / "elsewhere")
    path = tmp_path / ("c.yaml" if given == "in the file" else "elsewhere/c.yaml")
    name = key.partition(".")[2]
    model = "{model_type: llama}" if given == "on the command line" else f"{{model_type: llama}}, {name}: models/nope"
    path.write_text(f"data: {{paths: [{tmp_path}/data.txt], sequence_tokens: 16}}\nmodel: {{config: {model}}}\n")
    overrides = [f"{key}=models/nope"] if given == "on the command line" else []
    with pytest.raises(ConfigError) as caught:
        check_before_submit(load_config(path, overrides), "local")
    assert str(caught.value).startswith(f"{key} is {tmp_path}/models/nope, which does not exist on this machine; ")


def test_a_hub_name_stays_one_where_no_such_folder_is(tmp_path: Path) -> None:
    prepared(tmp_path, "model.name_or_path=somebody/small-model")


def test_a_fault_that_would_end_a_slurm_job_for_good_is_refused_there_and_nowhere_else(tmp_path: Path) -> None:
    faults = "faults=[{kind: spike}, {kind: node_lost, step: 3}]"
    with pytest.raises(ConfigError) as caught:
        prepared(tmp_path, faults, kind="slurm")
    assert str(caught.value) == (
        "faults[1].kind is node_lost, which kills the supervisor; in Slurm that ends the job for good, "
        "so that nothing would go on: use rank_kill there, or cluster.kind=local"
    )
    check_before_submit(load_config(tmp_path / "c.yaml", [faults]), "local")
    check_before_submit(load_config(tmp_path / "c.yaml", ["faults=[{kind: rank_kill, step: 3}]"]), "slurm")
