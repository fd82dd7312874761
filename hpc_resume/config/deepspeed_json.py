"""A user's DeepSpeed JSON, made one with the run's own settings: every `auto` filled, every contradiction refused.

The keys are those of DeepSpeed's configuration (deepspeed.ai/docs/config-json) and `auto` means what it means in
transformers and accelerate: whoever starts the training knows the value.
"""

from __future__ import annotations

import copy
import difflib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc_resume.config.schema import RunConfig
from hpc_resume.errors import ConfigError

AUTO = "auto"

ADAM_EPSILON = 1e-8
"""AdamW's epsilon, the only one of its numbers that has no setting."""

_QUIET = 1_000_000_000
"""Steps between two lines that DeepSpeed prints: never."""

_NOT_SUPPORTED = {
    "elasticity": "DeepSpeed removed it; recovery on other nodes is hpc_resume's own (recovery)",
    "nebula": "DeepSpeed removed it; checkpoints are hpc_resume's own (checkpoints)",
    "scheduler": "the learning rate follows training.schedule and training.warmup_steps; remove the block",
    "amp": "apex is not supported; set training.precision to bf16",
    "bfloat16": 'DeepSpeed\'s old name; call it "bf16"',
    "datastates_ckpt": "its writer names a checkpoint before its files are on disk",
    "tensor_parallel": "every rank takes other samples here; remove the block, and use zero_optimization.stage 3",
}
"""Blocks that cannot be honoured, and why."""

_MUST_NOT_BE = {
    "fp16.enabled": (True, "fp16 is not supported; set training.precision to bf16"),
    "bf16.check_grad_overflow": (False, "the monitor counts on steps with non-finite gradients being skipped"),
    "zero_optimization.load_from_fp32_weights": (False, "a resumed run would lose the fp32 weights' last bits"),
    "zero_optimization.elastic_checkpoint": (True, "another number of ranks loads a converted checkpoint instead"),
    "zero_optimization.compute_grad_norm": (False, "the monitor needs the norm of the gradients"),
    "managed_gradient_accumulation": (False, "the training loop leaves accumulation to DeepSpeed"),
    "checkpoint.use_node_local_storage": (True, "a run must be able to go on on other nodes"),
    "zero_optimization.offload_optimizer.device": (
        "nvme",
        "DeepSpeed copies that state into a checkpoint by itself, unseen by the commit; use cpu",
    ),
    "zero_optimization.offload_param.device": (
        "nvme",
        "DeepSpeed copies that state into a checkpoint by itself, unseen by the commit; use cpu",
    ),
    "checkpoint.load_universal": (True, "hpc_resume decides how a checkpoint is loaded"),
}
"""Values that would break what recovery relies on: key, the value that is refused, why."""

_CHECKPOINT: dict[str, str | None] = {
    "tag_validation": None,
    "use_node_local_storage": None,
    "load_universal": None,
    "writer": "hpc_resume writes checkpoints itself (checkpoints.mode): before the commit they must be on disk",
    "parallel_write": "the files of a checkpoint are those that the commit is checked by",
}
"""The keys of the `checkpoint` block that DeepSpeed's documentation names; with a reason, where one is refused."""

_KNOWN = frozenset(
    """
    activation_checkpointing aio autotuning bf16 checkpoint comms_logger communication_data_type compile
    compression_training csv_monitor curriculum_learning data_efficiency data_types disable_allgather
    dump_state flops_profiler fp16 gradient_accumulation_steps gradient_allreduce_op gradient_clipping
    gradient_predivide_factor memory_breakdown optimizer prescale_gradients scheduler sparse_attention
    sparse_gradients steps_per_print tensorboard torch_autocast train_batch_size train_micro_batch_size_per_gpu
    wall_clock_breakdown wandb zero_allow_untested_optimizer zero_force_ds_cpu_optimizer zero_optimization
    """.split()
)
"""Keys of the file that DeepSpeed knows; it ignores others without a word, also `zero_optimisation`."""

_KNOWN_ZERO = frozenset(
    """
    allgather_bucket_size allgather_partitions compute_grad_norm contiguous_gradients cpu_offload elastic_checkpoint
    ignore_unused_parameters load_from_fp32_weights offload_optimizer offload_param overlap_comm reduce_bucket_size
    reduce_scatter round_robin_gradients stage stage3_gather_16bit_weights_on_model_save stage3_max_live_parameters
    stage3_max_reuse_distance stage3_model_persistence_threshold stage3_param_persistence_threshold
    stage3_prefetch_bucket_size sub_group_size zero_hpz_partition_size zero_quantized_gradients
    zero_quantized_weights
    """.split()
)

_OPTIMIZER_SWITCHES = {"torch_adam": True, "adam_w_mode": True}
"""Optimizer parameters that only say what happens anyway: torch's own AdamW is used."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Ours:
    """A key whose value comes from the run's own settings."""

    key: str
    value: Any
    setting: str


def read_deepspeed_json(path: Path) -> dict[str, Any]:
    """Read a DeepSpeed JSON file; anything but one JSON object is a `ConfigError` that names the file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"training.deepspeed names {path}, which cannot be read ({error}); correct the path"
        ) from error
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{path}, line {error.lineno}, column {error.colno}: not JSON ({error.msg}); correct the file"
        ) from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} holds a JSON {_kind(values)}; a DeepSpeed file is an object: {{...}}")
    return values


def resolve_deepspeed(values: dict[str, Any] | None, config: RunConfig) -> dict[str, Any]:
    """Fill a DeepSpeed mapping from the run's settings; the result has no `auto` and no optimizer.

    Args:
        values: What the user wrote; None is ZeRO 0 with nothing special. It is not changed.
        config: The run's settings. Where both name a value and they differ, nobody can know which one is meant, so
            that is a `ConfigError`, as in transformers.

    The optimizer block is checked and then left out: the trainer builds torch's AdamW itself, which needs no compiler.
    """
    result = copy.deepcopy(values or {})
    _refuse_typos(result)
    _refuse(result)
    _check_optimizer(result, config)
    result.pop("fp16", None)
    zero = _zero_block(result)
    for ours in _our_values(config):
        _fill(result, ours)
    bf16 = result["bf16"]
    if bf16.get("check_grad_overflow") in (None, AUTO):
        bf16["check_grad_overflow"] = True
    if result.get("steps_per_print") in (None, AUTO):
        result["steps_per_print"] = _QUIET
    gather = "stage3_gather_16bit_weights_on_model_save"
    if zero["stage"] == 3 and zero.get(gather) in (None, AUTO):
        zero[gather] = True
    # DeepSpeed has defaults for all of these, and knows the model's size, which we do not.
    result["zero_optimization"] = _without_auto(zero)
    for key in _auto_keys(result):
        raise ConfigError(f'training.deepspeed: {key} is "auto", but hpc_resume has no value for it; write one')
    return result


def _our_values(config: RunConfig) -> list[_Ours]:
    training = config.training
    batch = "training.micro_batch_size x training.gradient_accumulation_steps x the number of ranks"
    return [
        _Ours(key="train_batch_size", value=config.global_batch_size, setting=batch),
        _Ours(
            key="train_micro_batch_size_per_gpu",
            value=training.micro_batch_size,
            setting="training.micro_batch_size",
        ),
        _Ours(
            key="gradient_accumulation_steps",
            value=training.gradient_accumulation_steps,
            setting="training.gradient_accumulation_steps",
        ),
        _Ours(key="gradient_clipping", value=training.max_grad_norm, setting="training.max_grad_norm"),
        _Ours(key="bf16.enabled", value=training.precision == "bf16", setting="training.precision"),
        _Ours(key="checkpoint.tag_validation", value="Fail", setting="fixed: all ranks must save the same checkpoint"),
    ]


def _refuse(values: dict[str, Any]) -> None:
    for key, reason in _NOT_SUPPORTED.items():
        if key in values:
            raise ConfigError(f"training.deepspeed: {key} cannot be used: {reason}")
    for key, (refused, reason) in _MUST_NOT_BE.items():
        found = _get(values, key)
        if found == refused:  # not `is`: DeepSpeed takes 0 and 1 as well
            raise ConfigError(f"training.deepspeed: {key} is {json.dumps(found)}: {reason}")
    for name in _block(values, "checkpoint", create=False) or {}:
        if name not in _CHECKPOINT:
            known = ", ".join(known for known, reason in _CHECKPOINT.items() if reason is None)
            raise ConfigError(f"training.deepspeed: checkpoint.{name} is not known here; known are {known}")
        if _CHECKPOINT[name] is not None:
            raise ConfigError(f"training.deepspeed: checkpoint.{name} cannot be used: {_CHECKPOINT[name]}")


def _refuse_typos(values: dict[str, Any]) -> None:
    """Refuse what is nearly a key of DeepSpeed's; what is like none of them may be a newer version's."""
    zero = values.get("zero_optimization")
    for prefix, block, known in (
        ("", values, _KNOWN),
        ("zero_optimization.", zero if isinstance(zero, dict) else {}, _KNOWN_ZERO),
    ):
        for name in block.keys() - known - _NOT_SUPPORTED.keys():
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.85)
            if close:
                raise ConfigError(
                    f"the DeepSpeed settings have {prefix}{name}, which DeepSpeed would ignore; "
                    f"did you mean {prefix}{close[0]}?"
                )


def _check_optimizer(values: dict[str, Any], config: RunConfig) -> None:
    block = _block(values, "optimizer", create=False)
    if block is None:
        return
    if str(block.get("type")).lower() != "adamw":
        raise ConfigError(f"training.deepspeed: optimizer.type is {block.get('type')!r}; only AdamW is supported")
    training = config.training
    known = {
        "lr": _Ours(key="lr", value=training.learning_rate, setting="training.learning_rate"),
        "betas": _Ours(key="betas", value=list(training.adam_betas), setting="training.adam_betas"),
        "eps": _Ours(key="eps", value=ADAM_EPSILON, setting="fixed"),
        "weight_decay": _Ours(key="weight_decay", value=training.weight_decay, setting="training.weight_decay"),
    }
    params = _block(block, "params", create=False, prefix="optimizer.") or {}
    for name, value in params.items():
        if name in known:
            _agree(f"optimizer.params.{name}", value, known[name])
        elif value != _OPTIMIZER_SWITCHES.get(name, AUTO):
            raise ConfigError(
                f"training.deepspeed: optimizer.params.{name} is {json.dumps(value)}; it cannot be passed on, because "
                f"torch's own AdamW is used; known are {', '.join(known)}"
            )
    del values["optimizer"]


def _zero_block(values: dict[str, Any]) -> dict[str, Any]:
    zero = _block(values, "zero_optimization", create=True)
    assert zero is not None
    stage = zero.setdefault("stage", 0)
    if isinstance(stage, bool) or stage not in (0, 1, 2, 3):
        raise ConfigError(
            f"training.deepspeed: zero_optimization.stage is {json.dumps(stage)}; it must be 0, 1, 2 or 3"
        )
    return zero


def _fill(values: dict[str, Any], ours: _Ours) -> None:
    *parents, name = ours.key.split(".")
    for parent in parents:
        block = _block(values, parent, create=True)
        assert block is not None
        values = block
    _agree(ours.key, values.get(name, AUTO), ours)
    values[name] = ours.value


def _agree(key: str, found: Any, ours: _Ours) -> None:
    if found not in (AUTO, ours.value):
        raise ConfigError(
            f"training.deepspeed: {key} is {json.dumps(found)}, but hpc_resume has {json.dumps(ours.value)} "
            f'({ours.setting}); write "auto" there'
        )


def _block(values: dict[str, Any], name: str, *, create: bool, prefix: str = "") -> dict[str, Any] | None:
    if name not in values and not create:
        return None
    block = values.setdefault(name, {})
    if not isinstance(block, dict):
        raise ConfigError(f"training.deepspeed: {prefix}{name} is {json.dumps(block)}; it must be an object: {{...}}")
    return block


def _get(values: Any, key: str) -> Any:
    for part in key.split("."):
        if not isinstance(values, dict):
            return None
        values = values.get(part)
    return values


def _without_auto(values: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in values.items() if value != AUTO}
    return {name: _without_auto(value) if isinstance(value, dict) else value for name, value in kept.items()}


def _auto_keys(values: Any, prefix: str = "") -> list[str]:
    if values == AUTO:
        return [prefix]
    if isinstance(values, dict):
        return [key for name, value in values.items() for key in _auto_keys(value, f"{prefix}.{name}".lstrip("."))]
    if isinstance(values, list):
        return [key for index, value in enumerate(values) for key in _auto_keys(value, f"{prefix}[{index}]")]
    return []


def _kind(value: Any) -> str:
    kinds = {list: "list", str: "string", bool: "boolean", type(None): "null"}
    return kinds.get(type(value), "number")
