"""Real ranks that hand one training on: saved by so many of them, taken up by another number.

This process imports everything once and forks the ranks of each leg, which therefore start in a moment.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from hpc_resume.checkpoints import catalog, universal
from hpc_resume.checkpoints.catalog import Manifest
from hpc_resume.config.cluster_section import ClusterConfig
from hpc_resume.config.deepspeed_json import resolve_deepspeed
from hpc_resume.config.schema import RunConfig, TrainingConfig
from hpc_resume.recovery.events import Checkpoint
from hpc_resume.trainers.engine import build_engine, close_engine, set_learning_rate

BATCH = 12
STEPS = 3


def manifest(step: int, world_size: int, stage: int, precision: str) -> Manifest:
    name = catalog.checkpoint_name(step, 1)
    checkpoint = Checkpoint(name=name, step=step, position=step * BATCH, branch=0, save_number=1)
    return Manifest(
        schema=catalog.SCHEMA,
        checkpoint=checkpoint,
        claim=1,
        attempt=1,
        world_size=world_size,
        zero_stage=stage,
        precision=precision,
        model="tiny",
        parameters=0,
        num_samples=BATCH,
        segments=[],
        versions={},
    )


class Tiny(torch.nn.Module):
    """Sizes that no number of ranks divides, two parameter groups, and what no optimizer owns."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(7, 13)
        self.norm = torch.nn.LayerNorm(13)
        self.second = torch.nn.Linear(13, 5)
        self.frozen = torch.nn.Parameter(torch.randn(5, 3), requires_grad=False)
        self.register_buffer("counted", torch.zeros(3, dtype=torch.int64))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        found = self.second(torch.tanh(self.norm(self.first(x)))) + self.frozen.sum(1)
        return torch.nn.functional.mse_loss(found.float(), y.float())


class Few(torch.nn.Module):
    """So few biases that of many ranks most have none."""

    def __init__(self) -> None:
        super().__init__()
        self.only = torch.nn.Linear(7, 5, bias=False)
        self.bias = torch.nn.Parameter(torch.zeros(2))
        self.register_buffer("counted", torch.zeros(3, dtype=torch.int64))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.mse_loss((self.only(x) + self.bias.sum()).float(), y.float())


MODELS = {"tiny": Tiny, "few": Few}


@dataclass(frozen=True)
class Kind:
    """What stays the same in all legs of a training."""

    folder: Path
    stage: int
    precision: str
    model: str


class Leg:
    """One number of ranks, for a while."""

    def __init__(self, kind: Kind, seed: int) -> None:
        self.kind = kind
        self.world = int(os.environ["WORLD_SIZE"])
        config = RunConfig(
            cluster=ClusterConfig(kind="local", ranks_per_node=self.world),
            training=TrainingConfig(
                precision=kind.precision,  # type: ignore[arg-type]
                gradient_accumulation_steps=BATCH // self.world,
                weight_decay=0.1,
                adam_betas=(0.9, 0.95),
            ),
        )
        torch.manual_seed(seed)
        values = resolve_deepspeed({"zero_optimization": {"stage": kind.stage}}, config)
        self.engine = build_engine(config, values, MODELS[kind.model])
        self.rank = dist.get_rank()
        self.said: dict[str, Any] = {"losses": {}}

    def train(self, steps: int, note: bool = True) -> None:
        dtype = next(self.engine.module.parameters()).dtype
        for _ in range(steps):
            step = self.engine.global_steps + 1
            generator = torch.Generator().manual_seed(step)
            x, y = torch.randn(BATCH, 7, generator=generator), torch.randn(BATCH, 5, generator=generator)
            set_learning_rate(self.engine, 0.01 * (1 + step / 10))
            total = torch.zeros((), dtype=torch.float64)
            for index in range(self.rank, BATCH, self.world):
                loss = self.engine(x[index : index + 1].to(dtype), y[index : index + 1].to(dtype))
                self.engine.backward(loss)
                self.engine.step()
                total += loss.detach().double()
            self.engine.module.counted += step
            dist.all_reduce(total)
            if note:
                self.said["losses"][step] = float(total) / BATCH

    def save(self) -> None:
        complete = manifest(self.engine.global_steps, self.world, self.kind.stage, self.kind.precision)
        name = complete.checkpoint.name
        self.engine.save_checkpoint(str(self.kind.folder), tag=name, client_state={}, save_latest=False)
        dist.barrier()
        if self.rank == 0:
            place = self.kind.folder / name
            for path in place.glob("*.py"):
                path.unlink()
            complete.files.update({path.name: catalog.digest_file(path) for path in place.iterdir()})
            (place / catalog.MANIFEST).write_text(complete.to_json(), encoding="utf-8")
        dist.barrier()

    def take_up(self, step: int) -> None:
        """Convert on rank 0 while the others wait, verify together, load."""
        name = catalog.checkpoint_name(step, 1)
        if self.rank == 0:
            universal.convert(self.kind.folder, catalog.read_manifest(self.kind.folder, name))
        dist.barrier()
        assert universal.find_universal_damage(self.kind.folder, name, (self.rank, self.world)) is None
        universal.load_universal(self.engine, self.kind.folder, name)

    def load(self, step: int) -> None:
        """Load as an attempt of the same size does."""
        self.engine.load_checkpoint(str(self.kind.folder), tag=catalog.checkpoint_name(step, 1))

    def state(self) -> dict[str, Any]:
        """Digests of the whole state, which do not depend on how it is cut."""
        adam = self.engine.basic_optimizer
        steps = {float(state["step"]) for state in adam.state.values()}
        settings = [{key: value for key, value in group.items() if key != "params"} for group in adam.param_groups]
        return {
            **{what: digest(values) for what, values in tensors(self.engine).items()},
            "steps": [sorted(steps), len(adam.state), len({id(state["step"]) for state in adam.state.values()})],
            "settings": repr(settings),
            "global_steps": self.engine.global_steps,
            "global_samples": self.engine.global_samples,
        }


def tensors(engine: Any) -> dict[str, list[torch.Tensor]]:
    import deepspeed
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    if engine.zero_optimization_stage() in (1, 2):
        # DeepSpeed's accessor looks once, at the first of two groups' first step, and never again.
        engine.optimizer._hp_optimizer_states_linked = False
        engine.optimizer._lazy_init_hp_params_optimizer_state()
    found: dict[str, list[torch.Tensor]] = {"weights": [], "masters": [], "moments": []}
    for parameter in engine.module.parameters():
        with deepspeed.zero.GatheredParameters([parameter]):
            found["weights"].append(parameter.detach().clone())
        if parameter.requires_grad and engine.zero_optimization_stage() > 0:
            found["masters"].append(safe_get_full_fp32_param(parameter))
            found["moments"].extend(safe_get_full_optimizer_state(parameter, key) for key in ("exp_avg", "exp_avg_sq"))
    if engine.zero_optimization_stage() == 0:
        adam = engine.basic_optimizer
        found["masters"] = [parameter for group in adam.param_groups for parameter in group["params"]]
        found["moments"] = [adam.state[p][key] for p in found["masters"] for key in ("exp_avg", "exp_avg_sq")]
    return {**found, "buffers": list(engine.module.buffers())}


def digest(values: list[torch.Tensor]) -> str:
    found = hashlib.sha256()
    for value in values:
        assert value.numel() > 0
        exact = value.detach().to("cpu", torch.int64 if value.dtype == torch.int64 else torch.float32)
        found.update(f"{tuple(value.shape)} {value.dtype}".encode() + exact.contiguous().numpy().tobytes())
    return found.hexdigest()


def first(leg: Leg) -> None:
    leg.train(STEPS)
    leg.said["state"] = leg.state()
    leg.save()


def undisturbed(leg: Leg, steps: int) -> None:
    leg.train(steps)
    leg.said["state"] = leg.state()


def further(leg: Leg, step: int) -> None:
    if leg.kind.stage == 0:
        leg.load(step)
    else:
        leg.take_up(step)
    leg.said["taken up"] = leg.state()
    leg.train(STEPS)
    leg.said["state"] = leg.state()
    leg.save()
    # From here on it is an engine like any other: it goes back to its own save.
    leg.train(1, note=False)
    leg.said["moved on"] = leg.state()
    leg.load(step + STEPS)
    leg.said["back"] = leg.state()


def again(leg: Leg, step: int) -> None:
    leg.load(step)
    leg.said["taken up"] = leg.state()


def fork_ranks(kind: Kind, name: str, ranks: int, seed: int, act: Callable[[Leg], None]) -> None:
    """Run one leg; rank 0 leaves word of it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    children = []
    for rank in range(ranks):
        if (child := os.fork()) == 0:
            os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)})
            os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_WORLD_SIZE": str(ranks)})
            code = 1
            try:
                leg = Leg(kind, seed)
                act(leg)
                if rank == 0:
                    (kind.folder / f"{name}.json").write_text(json.dumps(leg.said), encoding="utf-8")
                close_engine()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert not any(codes), f"leg {name}: {codes}"


def main(folder: str, stage: str, precision: str, sizes: str, model: str) -> None:
    """Run all legs: `sizes` are the numbers of ranks, one after the other."""
    for package in ("accelerate", "deepspeed", "transformers"):
        importlib.import_module(package)
    kind = Kind(Path(folder), int(stage), precision, model)
    legs = [int(size) for size in sizes.split(",")]
    fork_ranks(kind, "leg-0", legs[0], 0, first)
    for number, ranks in enumerate(legs[1:], 1):
        fork_ranks(kind, f"leg-{number}", ranks, number, lambda leg, n=number: further(leg, n * STEPS))  # type: ignore[misc]
    if len(legs) > 1:
        steps = len(legs) * STEPS
        fork_ranks(kind, "again", legs[-1], 77, lambda leg: again(leg, steps))
        fork_ranks(kind, "undisturbed", legs[0], 0, lambda leg: undisturbed(leg, steps))


if __name__ == "__main__":
    main(*sys.argv[1:])
