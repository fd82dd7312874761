"""Two real ranks that save and load through the store, with something wrong on one of them each time."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
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


def manifest(store: CheckpointStore, step: int, save_number: int) -> Manifest:
    name = catalog.checkpoint_name(step, save_number)
    checkpoint = Checkpoint(name=name, step=step, position=step * 4, branch=0, save_number=save_number)
    return Manifest(
        schema=catalog.SCHEMA,
        checkpoint=checkpoint,
        claim=1,
        attempt=1,
        num_samples=8,
        segments=[],
        versions={},
        **store.describe(),
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

    def save(self, what: str, number: int, *, background: bool = False, **broken: Any) -> None:
        def before_commit() -> None:
            if "commit" in broken:
                raise OSError(28, "No space left on device")

        wanted = manifest(self.store, self.engine.global_steps, number)
        _, allowed = resource.getrlimit(resource.RLIMIT_FSIZE)
        if broken.get("rank") == self.rank:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, allowed))
        try:
            pending = self.store.begin(wanted, {"rank": self.rank}, background=background)
            if background and not broken:
                self.step()  # what is saved must be the state before this
            self.store.finish(pending, before_commit)
            self.said[what] = "committed"
        except SaveError as error:
            self.said[what] = str(error)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (allowed, allowed))

    def load(self, what: str, wanted: Manifest) -> None:
        try:
            state = self.store.load(wanted)
            self.said[what] = f"rank {state['rank']} at step {self.engine.global_steps}"
        except CheckpointError as error:
            self.said[what] = str(error)


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
    case.save("beside training", 5, background=True)
    case.said["went on"] = str(case.engine.global_steps)
    beside = catalog.read_manifest(case.folder, catalog.checkpoint_name(2, 5))
    case.load("beside", beside)
    case.said["not what came later"] = str(weights_digest(case.engine) == digest)
    case.save("rank 1 can't write beside training", 6, background=True, rank=1)
    case.save("beside training again", 7, background=True)
    for what, difference in (
        ("other model", {"model": "0123", "parameters": 5}),
        ("other stage", {"zero_stage": 3}),
        ("other precision", {"precision": "bf16"}),
    ):
        case.load(what, dataclasses.replace(whole, **difference))
    dist.barrier()
    if case.rank == 0:
        (case.folder / beside.checkpoint.name / "mp_rank_01_model_states.pt").write_bytes(b"x")
    dist.barrier()
    case.load("a file too many", beside)
    Path(sys.argv[1], f"said-{os.environ['RANK']}.json").write_text(json.dumps(case.said), encoding="utf-8")
    close_engine()
    sys.stdout.flush()
    # As a real rank leaves: the destructors of a process group can still abort what has ended well.
    os._exit(0)


main()
