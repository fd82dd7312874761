from __future__ import annotations

from pathlib import Path

import pytest

from hpc_resume.config.check import check_before_submit
from hpc_resume.config.deepspeed_json import resolve_deepspeed
from hpc_resume.config.load import dump_config, load_config
from hpc_resume.config.sweep import expand

CONFIGS = Path(__file__).parents[2] / "configs"
RANKS = {"quickstart": (1, 2), "sweep": (3, 1), "a100_1node": (1, 8), "a100_4nodes": (1, 32)}


def test_every_example_is_tested_here() -> None:
    assert {path.stem for path in CONFIGS.glob("*.yaml")} == set(RANKS)


@pytest.mark.parametrize("name", RANKS)
def test_an_example_loads_and_expands(name: str, tmp_path: Path) -> None:
    config = load_config(CONFIGS / f"{name}.yaml")
    runs = expand(config)
    assert (len(runs), config.world_size) == RANKS[name]
    assert config.name == name
    assert config.runs_dir == str(CONFIGS.parent / "runs")
    for run in runs:
        assert resolve_deepspeed(run.training.deepspeed, run)["train_batch_size"] == run.global_batch_size
    copy = tmp_path / "config.yaml"
    copy.write_text(dump_config(config))
    assert load_config(copy) == config


@pytest.mark.parametrize("name", ["quickstart", "sweep"])
def test_an_example_for_this_machine_can_start_on_it(name: str) -> None:
    check_before_submit(load_config(CONFIGS / f"{name}.yaml"), "local")


def test_the_spike_of_the_quickstart_comes_when_there_is_a_certified_way_back() -> None:
    config = load_config(CONFIGS / "quickstart.yaml")
    (spike,) = config.faults
    saves = config.checkpoints
    margin = config.recovery.rollback_margin_steps
    assert spike.step - margin > saves.interval_steps + saves.certify_after_steps
    assert spike.step > config.monitor.spike_warmup_steps
    assert spike.step + saves.interval_steps < config.training.steps
