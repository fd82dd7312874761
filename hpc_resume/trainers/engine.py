"""The DeepSpeed engine, made through accelerate; on a machine without GPU or compiler as well.

All of it was tried with deepspeed 0.19, accelerate 1.15 and transformers 5.24, for ZeRO 0 to 3 in fp32 and bf16.
"""

from __future__ import annotations

import copy
import os
import socket
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch

from hpc_resume.config.deepspeed_json import ADAM_EPSILON
from hpc_resume.config.schema import RunConfig
from hpc_resume.errors import DeviceError, TrainerError
from hpc_resume.trainers.model import Model

Engine = Any
"""A `deepspeed.DeepSpeedEngine`; that library carries no types."""

_NO_GPUS = {
    "CUDA_VISIBLE_DEVICES": ("", "-1", "NoDevFiles"),
    "SLURM_GPUS_ON_NODE": ("", "0"),
    "SLURM_STEP_GPUS": ("",),
    "SLURM_JOB_GPUS": ("",),
}
"""Variables that say whether this process was given GPUs, and the values that mean that it was not."""

_LAUNCH_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def build_engine(config: RunConfig, deepspeed: dict[str, Any], make_model: Callable[[], Model]) -> Engine:
    """Set up this rank's process group and wrap the model in a DeepSpeed engine.

    One engine in the life of a process: accelerate keeps its state for ever.

    Args:
        config: The run's settings.
        deepspeed: The mapping that `resolve_deepspeed` made of them; it is not changed.
        make_model: Builds the model. It is called after accelerate has told transformers about ZeRO 3, so that
            pretrained weights can be loaded in parts.

    Raises:
        TrainerError: the environment or the settings can't be used.
        DeviceError: this node does not have the GPUs that it should.
    """
    _require_launcher(config)
    device = _choose_device()
    # torch 2.13 deprecates names that DeepSpeed 0.19 calls in every step; nobody who reads the log can change that.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed\.c10d_logger")
    from accelerate import Accelerator, DeepSpeedPlugin
    from accelerate.utils import DistributedType, InitProcessGroupKwargs

    values = copy.deepcopy(deepspeed)
    plugin = DeepSpeedPlugin(hf_ds_config=values)
    # The plugin silences DeepSpeed on its own account; what the user wrote counts.
    plugin.deepspeed_config["steps_per_print"] = deepspeed["steps_per_print"]
    accelerator = Accelerator(
        # Not `cpu=True`: that trains with DDP, without a word. Naming the backend is what makes it work on a CPU.
        deepspeed_plugin=plugin,
        gradient_accumulation_steps=config.training.gradient_accumulation_steps,
        mixed_precision="no",  # the mapping says it; an ACCELERATE_MIXED_PRECISION in the environment must not
        kwargs_handlers=[
            InitProcessGroupKwargs(
                backend="nccl" if device == "cuda" else "gloo",
                timeout=timedelta(seconds=config.supervisor.phase_limit_s),
            )
        ],
    )
    if accelerator.distributed_type is not DistributedType.DEEPSPEED:
        raise TrainerError(
            f"accelerate chose {accelerator.distributed_type.value} instead of DeepSpeed; unset the ACCELERATE_* "
            "variables in the environment"
        )
    model = make_model()
    engine, _ = accelerator.prepare(model, _optimizer(model, config))
    _check(engine, config)
    _undo_dummy_step(engine)
    set_learning_rate(engine, config.training.learning_rate)
    return engine


def set_learning_rate(engine: Engine, learning_rate: float) -> None:
    """Set the learning rate of the next step, in every parameter group."""
    for group in engine.optimizer.param_groups:
        group["lr"] = learning_rate


def get_learning_rate(engine: Engine) -> float:
    """Learning rate that the next step would use."""
    return float(engine.optimizer.param_groups[0]["lr"])


def device_name(engine: Engine) -> str:
    """What this rank computes on: `cpu`, or the name of its GPU."""
    return "cpu" if engine.device.type == "cpu" else torch.cuda.get_device_name(engine.device)


def step_health(engine: Engine) -> tuple[Any, bool]:
    """Global gradient norm before clipping, and whether DeepSpeed skipped the step because that was not finite.

    Both are the same on all ranks and cost no communication. Call it after the `engine.step()` that ends an optimizer
    step; between micro batches DeepSpeed reports every step as not applied. The norm is None where DeepSpeed computes
    none (stage 0 in fp32), and infinite when the step was skipped; else it is a float, or a scalar tensor that is left
    where it is: to read it from a GPU would be to wait for the whole step.
    """
    skipped = not engine.was_step_applied()
    norm = engine.get_global_grad_norm()
    return (float("inf") if skipped and norm is not None else norm), skipped


def loss_scale(engine: Engine) -> float | None:
    """What DeepSpeed multiplies the next loss by, where it looks for that number itself (fp16); else None.

    The same on all ranks, and a number on the host: nothing is waited for. `resolve_deepspeed` refuses fp16, so this is
    for loops with an engine of their own, too.
    """
    if not (engine.fp16_enabled() and engine.dynamic_loss_scale()):
        return None
    return float(engine.optimizer.loss_scale)


def protects_weights(engine: Engine) -> bool:
    """Whether DeepSpeed skips a step with non-finite gradients, so that the weights survive it.

    True for ZeRO 1 to 3, and for bf16 at any stage; at stage 0 in fp32 torch's optimizer runs bare. Measured: one NaN
    loss on one rank. `resolve_deepspeed` refuses the settings that would turn the check off.
    """
    return bool(engine.zero_optimization_stage() >= 1 or engine.bfloat16_enabled())


def close_engine() -> None:
    """Leave the process group; the last thing that a rank does with DeepSpeed."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _require_launcher(config: RunConfig) -> None:
    missing = [name for name in _LAUNCH_VARIABLES if name not in os.environ]
    if missing:
        raise TrainerError(
            f"{', '.join(missing)} not set in the environment; workers are started by torchrun, see `hpc_resume run`"
        )
    world = int(os.environ["WORLD_SIZE"])
    if world != config.world_size:
        raise TrainerError(
            f"{world} ranks were started, but cluster.nodes x cluster.ranks_per_node is {config.world_size}; "
            "they must be equal"
        )


def _choose_device() -> str:
    if not torch.cuda.is_available():
        _refuse_lost_gpus()
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
        _forbid_shm_op()
        return "cpu"
    local_rank, devices = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if local_rank >= devices:
        raise DeviceError(
            f"local rank {local_rank} has no GPU of its own, node {socket.gethostname()} shows {devices}; if one is "
            "broken avoid the node, else lower cluster.ranks_per_node, or ask for more GPUs in cluster.sbatch"
        )
    torch.cuda.set_device(local_rank)
    return "cuda"


def _refuse_lost_gpus() -> None:
    """Refuse to go on on the CPU where GPUs were given: that is a thousand times slower, and gives other bits."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return  # somebody hid them on purpose
    given = [f"{name}={os.environ[name]}" for name, none in _NO_GPUS.items() if os.environ.get(name, "") not in none]
    if given:
        raise DeviceError(
            f"{', '.join(given)} in the environment says that this process was given GPUs, but torch "
            f"{torch.__version__} sees none on node {socket.gethostname()}; see what nvidia-smi says there, or, to "
            "train on the CPU, set CUDA_VISIBLE_DEVICES to nothing"
        )


def _forbid_shm_op() -> None:
    # On a CPU DeepSpeed compiles this op whenever a process group starts, whoever needs it (inference does): 40 s, a
    # compiler, and a lock that hangs the next start for ever when a job is killed meanwhile. The table is private to
    # DeepSpeed; tests/trainers holds that it still works.
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def _optimizer(model: Model, config: RunConfig) -> torch.optim.Optimizer:
    training = config.training
    decayed: list[torch.nn.Parameter] = []
    plain: list[torch.nn.Parameter] = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            # ZeRO 3 leaves an empty stub in place of a parameter, and its shape under another name.
            shape = getattr(parameter, "ds_shape", parameter.shape)
            (decayed if len(shape) >= 2 else plain).append(parameter)
    # Norm weights and biases are not decayed. The learning rate comes when the engine is built, see _undo_dummy_step.
    groups = [
        {"params": decayed, "weight_decay": training.weight_decay, "lr": 0.0},
        {"params": plain, "weight_decay": 0.0, "lr": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=training.learning_rate,
        betas=training.adam_betas,
        eps=ADAM_EPSILON,
    )


def _undo_dummy_step(engine: Engine) -> None:
    # At stage 0 in bf16 DeepSpeed allocates Adam's state by a step on gradients of zero. With a learning rate of zero
    # that leaves weights and moments as they were, but not the count, which would make the first real updates smaller.
    for state in engine.basic_optimizer.state.values():
        if "step" in state:
            state["step"] = state["step"] * 0  # a tensor, or a number in DeepSpeed's own Adam for the CPU


def _check(engine: Engine, config: RunConfig) -> None:
    from deepspeed import DeepSpeedEngine

    if not isinstance(engine, DeepSpeedEngine):
        raise TrainerError(f"accelerate prepared a {type(engine).__name__} instead of a DeepSpeedEngine; report this")
    if engine.train_batch_size() != config.global_batch_size:
        raise TrainerError(
            f"DeepSpeed trains on {engine.train_batch_size()} samples a step, the config says "
            f"{config.global_batch_size}; report this"
        )
