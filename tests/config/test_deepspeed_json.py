"""A user's DeepSpeed file against the run's settings."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from hpc_resume.config.cluster_section import ClusterConfig
from hpc_resume.config.deepspeed_json import read_deepspeed_json, resolve_deepspeed
from hpc_resume.config.schema import RunConfig, TrainingConfig
from hpc_resume.errors import ConfigError

CONFIG = RunConfig(
    cluster=ClusterConfig(nodes=2, ranks_per_node=4),
    training=TrainingConfig(micro_batch_size=3, gradient_accumulation_steps=5, max_grad_norm=1.0, learning_rate=1e-4),
)
FOLDER = Path(__file__).parents[2] / "configs" / "deepspeed"


def fp32(config: RunConfig = CONFIG) -> RunConfig:
    training = TrainingConfig(micro_batch_size=3, gradient_accumulation_steps=5, precision="fp32")
    return RunConfig(cluster=config.cluster, training=training)


def autos(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [found for inner in value.values() for found in autos(inner)]
    return [value] if value == "auto" else []


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_files_that_come_with_the_package_resolve(stage: int) -> None:
    found = resolve_deepspeed(read_deepspeed_json(FOLDER / f"zero{stage}.json"), CONFIG)
    assert found["zero_optimization"]["stage"] == stage
    assert autos(found) == []
    assert found["train_batch_size"] == 2 * 4 * 3 * 5
    assert found["train_micro_batch_size_per_gpu"] == 3
    assert found["gradient_accumulation_steps"] == 5
    assert found["gradient_clipping"] == 1.0
    assert found["bf16"] == {"enabled": True, "check_grad_overflow": True}
    assert found["checkpoint"] == {"tag_validation": "Fail"}


def test_no_file_is_stage_0() -> None:
    found = resolve_deepspeed(None, CONFIG)
    assert found["zero_optimization"]["stage"] == 0
    assert found["bf16"]["enabled"] is True


def test_resolving_twice_changes_nothing_and_the_input_is_left_alone() -> None:
    values = read_deepspeed_json(FOLDER / "zero3.json")
    before = copy.deepcopy(values)
    once = resolve_deepspeed(values, CONFIG)
    assert values == before
    assert resolve_deepspeed(once, CONFIG) == once


def test_precision_comes_from_the_run() -> None:
    found = resolve_deepspeed({"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto", "loss_scale": 0}}, fp32())
    assert found["bf16"]["enabled"] is False
    assert "fp16" not in found


def test_an_agreeing_optimizer_block_is_checked_and_left_out() -> None:
    params = {"lr": 1e-4, "betas": [0.9, 0.95], "eps": "auto", "weight_decay": "auto", "torch_adam": True}
    assert "optimizer" not in resolve_deepspeed({"optimizer": {"type": "AdamW", "params": params}}, CONFIG)


def test_auto_numbers_inside_zero_are_left_to_deepspeed() -> None:
    zero = {"stage": 3, "reduce_bucket_size": "auto", "offload_optimizer": {"device": "cpu", "pin_memory": "auto"}}
    found = resolve_deepspeed({"zero_optimization": zero}, CONFIG)["zero_optimization"]
    assert found == {
        "stage": 3,
        "offload_optimizer": {"device": "cpu"},
        "stage3_gather_16bit_weights_on_model_save": True,
    }


def test_harmless_keys_of_the_checkpoint_block_are_kept() -> None:
    block = {"tag_validation": "auto", "load_universal": False, "use_node_local_storage": False}
    assert resolve_deepspeed({"checkpoint": block}, CONFIG)["checkpoint"] == block | {"tag_validation": "Fail"}


def test_a_steps_per_print_of_the_user_is_kept() -> None:
    assert resolve_deepspeed({"steps_per_print": 10}, CONFIG)["steps_per_print"] == 10


@pytest.mark.parametrize(
    ("values", "pieces"),
    [
        ({"train_batch_size": 64}, ["train_batch_size is 64", "has 120", "training.micro_batch_size", '"auto"']),
        ({"train_micro_batch_size_per_gpu": 1}, ["is 1", "has 3", "training.micro_batch_size"]),
        ({"gradient_accumulation_steps": 1}, ["is 1", "has 5", "training.gradient_accumulation_steps"]),
        ({"gradient_clipping": 0.5}, ["is 0.5", "has 1.0", "training.max_grad_norm"]),
        ({"bf16": {"enabled": False}}, ["bf16.enabled is false", "has true", "training.precision"]),
        ({"checkpoint": {"tag_validation": "Warn"}}, ["checkpoint.tag_validation", '"Warn"', '"Fail"']),
        (
            {"optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}},
            ["optimizer.params.lr is 0.001", "has 0.0001", "training.learning_rate"],
        ),
        ({"optimizer": {"type": "AdamW", "params": {"betas": [0.9, 0.999]}}}, ["betas", "training.adam_betas"]),
        ({"optimizer": {"type": "AdamW", "params": {"amsgrad": True}}}, ["optimizer.params.amsgrad"]),
        ({"optimizer": {"type": "AdamW", "params": {"torch_adam": False}}}, ["optimizer.params.torch_adam"]),
        ({"optimizer": {"type": "Lamb"}}, ["optimizer.type is 'Lamb'", "AdamW"]),
        ({"optimizer": "AdamW"}, ["optimizer is", "must be an object"]),
        ({"scheduler": {"type": "WarmupLR"}}, ["scheduler", "training.schedule"]),
        ({"fp16": {"enabled": True}}, ["fp16.enabled", "bf16"]),
        ({"elasticity": {"enabled": True}}, ["elasticity", "removed"]),
        ({"nebula": {}}, ["nebula", "removed"]),
        ({"bf16": {"enabled": "auto", "check_grad_overflow": False}}, ["bf16.check_grad_overflow", "skipped"]),
        ({"zero_optimization": {"stage": 4}}, ["zero_optimization.stage is 4", "0, 1, 2 or 3"]),
        ({"zero_optimization": {"stage": "auto"}}, ["zero_optimization.stage", "0, 1, 2 or 3"]),
        ({"zero_optimization": {"stage": True}}, ["zero_optimization.stage is true"]),
        ({"zero_optimization": True}, ["zero_optimization is true", "must be an object"]),
        ({"checkpoint": {"load_universal": True}}, ["checkpoint.load_universal"]),
        ({"checkpoint": {"writer": {"type": "fast"}}}, ["checkpoint.writer", "commit"]),
        ({"checkpoint": {"writer": {"type": "python", "decoupled": True}}}, ["checkpoint.writer", "commit"]),
        ({"checkpoint": {"parallel_write": {"pipeline_stage": True}}}, ["checkpoint.parallel_write"]),
        ({"checkpoint": {"async": True}}, ["checkpoint.async is not known", "tag_validation"]),
        ({"checkpoint": {"use_node_local_storage": 1}}, ["checkpoint.use_node_local_storage is 1"]),
        ({"checkpoint": []}, ["checkpoint is []", "must be an object"]),
        ({"datastates_ckpt": {}}, ["datastates_ckpt", "on disk"]),
        ({"tensor_parallel": {"autotp_size": 2}}, ["tensor_parallel", "other samples"]),
        (
            {"zero_optimization": {"stage": 2, "load_from_fp32_weights": False}},
            ["zero_optimization.load_from_fp32_weights is false", "fp32"],
        ),
        ({"zero_optimization": {"stage": 2, "elastic_checkpoint": True}}, ["zero_optimization.elastic_checkpoint"]),
        ({"flops_profiler": {"enabled": "auto"}}, ['flops_profiler.enabled is "auto"', "write one"]),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, dict) else "",
)
def test_a_contradiction_is_refused_with_both_values_and_the_setting(values: dict[str, Any], pieces: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_deepspeed(values, CONFIG)
    message = str(caught.value)
    assert message.startswith("training.deepspeed: ")
    assert "\n" not in message
    for piece in pieces:
        assert piece in message


@pytest.mark.parametrize(
    ("content", "piece"),
    [
        ('{\n  "a": 1,\n}', "line 3, column 1"),
        ("[1]", "holds a JSON list"),
        ("3", "holds a JSON number"),
        (None, "cannot be read"),
    ],
    ids=["trailing comma", "list", "number", "missing"],
)
def test_a_file_that_is_no_json_object_is_named(tmp_path: Path, content: str | None, piece: str) -> None:
    path = tmp_path / "zero.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=piece) as caught:
        read_deepspeed_json(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("values", "meant"),
    [
        ({"zero_optimisation": {"stage": 1}}, "zero_optimization"),
        ({"zero_optimization": {"stage": 2, "overlap_com": True}}, "zero_optimization.overlap_comm"),
    ],
    ids=["a block", "a key of zero_optimization"],
)
def test_a_key_that_deepspeed_would_ignore_is_refused_if_another_was_meant(values: dict[str, Any], meant: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean {meant}"):
        resolve_deepspeed(values, CONFIG)


def test_a_key_that_resembles_none_is_left_to_deepspeed() -> None:
    assert resolve_deepspeed({"some_new_feature": {"on": True}}, CONFIG)["some_new_feature"] == {"on": True}
