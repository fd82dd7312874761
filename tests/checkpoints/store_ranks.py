"""Two real ranks that save and load through the store, with something wrong on one of them each time."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from hpc_resume.checkpoints import catalog
from hpc_resume.checkpoints.catalog import Manifest
from hpc_resume.checkpoints.store import CheckpointStore, SaveError
from hpc_resume.config.cluster_section import ClusterConfig
from hpc_resume.config.deepspeed_json import resolve_deepspeed
from hpc_resume.config.schema import RunConfig, TrainingConfig
from hpc_resume.errors import CheckpointError
from hpc_resume.recovery.events import Checkpoint
from hpc_resume.trainers.engine import build_engine, close_engine, set_learning_rate
from hpc_resume.trainers.export import weights_digest


def manifest(step: int, save_number: int) -> Manifest:
    name = catalog.checkpoint_name(step, save_number)
    checkpoint = Checkpoint(name=name, step=step, position=step * 4, branch=0, save_number=save_number)
    return Manifest(
        schema=catalog.SCHEMA,
        checkpoint=checkpoint,
        claim=1,
        attempt=1,
        world_size=2,
        zero_stage=2,
        precision="fp32",
        num_samples=8,
        segments=[],
        versions={},
    )


class Case:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        config = RunConfig(
            cluster=ClusterConfig(kind="local", ranks_per_node=2),
            training=TrainingConfig(precision="fp32", max_grad_norm=0.0),
        )
        torch.manual_seed(0)
        values = resolve_deepspeed({"zero_optimization": {"stage": 2}}, config)
        self.engine = build_engine(config, values, lambda: torch.nn.Sequential(torch.nn.Linear(8, 8)))
        set_learning_rate(self.engine, 0.01)
        self.rank = dist.get_rank()
        self.store = CheckpointStore(folder, self.engine, dist.new_group(backend="gloo"))
        self.said: dict[str, str] = {}

    def step(self) -> None:
        data = torch.full((4, 8), float(self.engine.global_steps + 1) / 10)
        self.engine.backward(self.engine(data).square().mean())
        self.engine.step()

    def save(self, what: str, number: int, **broken: Any) -> None:
        def before_commit() -> None:
            if "commit" in broken:
                raise OSError(28, "No space left on device")

        engine = self.engine.checkpoint_engine
        if broken.get("rank") == self.rank:

            def refuse(*_arguments: Any, **_named: Any) -> None:
                raise OSError(28, "No space left on device")

            self.engine.checkpoint_engine = _Refusing(engine, refuse)
        try:
            self.store.save(manifest(self.engine.global_steps, number), {"rank": self.rank}, before_commit)
            self.said[what] = "committed"
        except SaveError as error:
            self.said[what] = str(error)
        finally:
            self.engine.checkpoint_engine = engine

    def load(self, what: str, wanted: Manifest) -> None:
        try:
            state = self.store.load(wanted)
            self.said[what] = f"rank {state['rank']} at step {self.engine.global_steps}"
        except CheckpointError as error:
            self.said[what] = str(error)


class _Refusing:
    def __init__(self, inner: Any, save: Any) -> None:
        self._inner = inner
        self.save = save

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def damage(case: Case, name: str, ending: str) -> None:
    """Flip one byte of a file, once, while the other rank waits."""
    dist.barrier()
    if case.rank == 0:
        path = next(p for p in (case.folder / name).iterdir() if p.name.endswith(ending))
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    dist.barrier()


def main() -> None:
    case = Case(Path(sys.argv[1]))
    case.step()
    case.step()
    case.save("whole", 1)
    whole = catalog.read_manifest(case.folder, catalog.checkpoint_name(2, 1))
    digest = weights_digest(case.engine)
    case.save("commit refused", 2, commit=True)
    case.save("rank 1 can't write", 3, rank=1)
    case.save("again", 4)
    case.step()
    case.said["moved on"] = str(weights_digest(case.engine) != digest)
    case.load("back", whole)
    case.said["same weights"] = str(weights_digest(case.engine) == digest)
    again = catalog.read_manifest(case.folder, catalog.checkpoint_name(2, 4))
    damage(case, again.checkpoint.name, "rank_1_mp_rank_00_optim_states.pt")
    case.load("damaged on rank 1", again)
    case.load("whole after all", whole)
    Path(sys.argv[1], f"said-{os.environ['RANK']}.json").write_text(json.dumps(case.said), encoding="utf-8")
    close_engine()
    sys.stdout.flush()
    # As a real rank leaves: the destructors of a process group can still abort what has ended well.
    os._exit(0)


main()
