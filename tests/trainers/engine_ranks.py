"""One rank of `test_engine.py`: trains a tiny model under each case and writes what it saw.

python -m torch.distributed.run ... engine_ranks.py FOLDER PRECISION STAGE...
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate.state import AcceleratorState
from trainers.tiny_models import ODD, SHAPE, config_of
from transformers import AutoModelForCausalLM

from hpc_resume.checkpoints import catalog
from hpc_resume.checkpoints.catalog import Manifest
from hpc_resume.checkpoints.store import CheckpointStore
from hpc_resume.config.deepspeed_json import read_deepspeed_json, resolve_deepspeed
from hpc_resume.config.schema import ModelConfig, RunConfig
from hpc_resume.errors import DivergedError, ExportError
from hpc_resume.recovery.events import Checkpoint
from hpc_resume.trainers.engine import (
    build_engine,
    close_engine,
    device_name,
    get_learning_rate,
    protects_weights,
    set_learning_rate,
    step_health,
)
from hpc_resume.trainers.export import export_model, weights_digest
from hpc_resume.trainers.model import build_model, load_tokenizer
from hpc_resume.trainers.token_blocks import TokenBlocks, prepare_token_blocks

LEARNING_RATES = (1e-3, 2e-3, 5e-4)


def main(folder: Path, precision: str, stages: list[int]) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    for stage in stages:
        model = ModelConfig(config=SHAPE)
        result = train(folder, f"{stage}-{precision}", stage, config_of(folder, precision, world, model))
        if rank == 0:
            (folder / f"{stage}-{precision}.json").write_text(json.dumps(result))
    if 3 in stages and world > 1:
        # The exported folder, taken up again as pretrained weights under zero.Init.
        model = ModelConfig(name_or_path=str(folder / f"export-3-{precision}"), weights="pretrained")
        engine = start(3, config_of(folder, precision, world, model), load_tokenizer("bytes"))
        digest = weights_digest(engine)
        export_model(engine, "bytes", folder / "export-again")
        export = compare(engine, folder / "export-again")
        if rank == 0:
            (folder / f"pretrained-{precision}.json").write_text(json.dumps({"digest": digest, "export": export}))
        train_a_step(engine, folder)
        export_model(engine, "bytes", folder / f"export-pretrained-{precision}")
        commit(engine, folder / f"run-pretrained-{precision}")
        for stage in (2, 3):
            engine = start(stage, config_of(folder, precision, world, ModelConfig(config=ODD)), load_tokenizer("bytes"))
            train_a_step(engine, folder)
            export_model(engine, "bytes", folder / f"export-odd{stage}-{precision}")
            commit(engine, folder / f"run-odd{stage}-{precision}")
    close_engine()


def commit(engine: Any, run: Path) -> None:
    """Save a checkpoint as a run does."""
    step, stage = int(engine.global_steps), int(engine.zero_optimization_stage())
    name = catalog.checkpoint_name(step, 1)
    manifest = Manifest(
        schema=catalog.SCHEMA,
        checkpoint=Checkpoint(name=name, step=step, position=step * 8, branch=0, save_number=1),
        claim=1,
        attempt=1,
        world_size=engine.world_size,
        zero_stage=stage,
        precision="bf16" if engine.bfloat16_enabled() else "fp32",
        model="",
        parameters=0,
        num_samples=100,
        segments=[],
        versions={},
    )
    store = CheckpointStore(run / "checkpoints", engine, dist.new_group(backend="gloo"))
    # Every second one beside the training, as runs do it by default.
    store.finish(store.begin(manifest, {}, background=stage % 2 == 1), lambda: None)


def start(stage: int, config: RunConfig, tokenizer: Any) -> Any:
    # A worker has one engine in its life; here there are several.
    AcceleratorState._reset_state(reset_partial_state=True)
    path = Path(__file__).parents[2] / "configs" / "deepspeed" / f"zero{stage}.json"
    values = resolve_deepspeed(read_deepspeed_json(path) if stage else None, config)
    return build_engine(
        config,
        values,
        lambda: build_model(
            config,
            vocab_size=len(tokenizer),
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        ),
    )


def train(folder: Path, name: str, stage: int, config: RunConfig) -> dict[str, Any]:
    engine = start(stage, config, load_tokenizer("bytes"))
    rank = engine.global_rank
    samples = folder / f"samples-{rank}"
    prepare_token_blocks(config.data, config.model, samples)
    blocks = TokenBlocks.open(samples)
    initial = weights_digest(engine)
    rows = []
    for step, learning_rate in enumerate(LEARNING_RATES):
        set_learning_rate(engine, learning_rate)
        losses = []
        for micro in range(2):
            losses.append(one_micro_batch(engine, blocks, first=step * 8 + rank * 4 + micro * 2))
        norm, skipped = step_health(engine)
        used = [float(group["lr"]) for group in engine.basic_optimizer.param_groups]
        norm = None if norm is None else float(norm)
        rows.append({"losses": losses, "norm": norm, "skipped": skipped, "lr": get_learning_rate(engine), "used": used})
    digest = weights_digest(engine)
    exported = folder / f"export-{name}"
    export_model(engine, "bytes", exported)
    export_model(engine, "bytes", exported)  # safe to perform twice
    commit(engine, folder / f"run-{name}")
    return {
        "optimizer": type(engine.optimizer).__name__,
        "rows": rows,
        "initial": initial,
        "digest": digest,
        "decays": [group["weight_decay"] for group in engine.basic_optimizer.param_groups],
        "export": compare(engine, exported),
        "failed_export": failed_export(engine, folder / "text.txt" / "export"),
        "nan": nan_step(engine, blocks),
        "protects": protects_weights(engine),
        "device": device_name(engine),
        "diverged_export": diverged_export(engine, folder / "diverged"),  # the last, since it spoils the weights
    }


def train_a_step(engine: Any, folder: Path) -> None:
    blocks = TokenBlocks.open(folder / f"samples-{engine.global_rank}")
    for micro in range(2):
        one_micro_batch(engine, blocks, first=engine.global_rank * 4 + micro * 2)


def one_micro_batch(engine: Any, blocks: TokenBlocks, first: int, *, poison: bool = False) -> float:
    batch = torch.utils.data.default_collate([blocks[first], blocks[first + 1]])
    loss = engine(**{name: values.to(engine.device) for name, values in batch.items()}).loss
    engine.backward(loss * float("nan") if poison else loss)
    engine.step()
    return float(loss.detach())


def compare(engine: Any, exported: Path) -> dict[str, Any]:
    """Whether the exported folder gives the loss that the engine's own weights give."""
    again = AutoModelForCausalLM.from_pretrained(exported).to(engine.device)
    ids = torch.arange(3, 35, device=engine.device)[None]
    with torch.no_grad():
        mine = float(engine(input_ids=ids, labels=ids).loss)
        theirs = float(again(input_ids=ids, labels=ids).loss)
    return {"mine": mine, "theirs": theirs, "dtype": str(again.dtype), "use_cache": again.config.use_cache}


def failed_export(engine: Any, folder: Path) -> list[str]:
    """What each rank is told when rank 0 cannot write."""
    told: list[Any] = [None] * engine.world_size
    try:
        export_model(engine, "bytes", folder)
        mine = "nothing"
    except (DivergedError, ExportError) as error:
        mine = f"{type(error).__name__}: {error}"
    torch.distributed.all_gather_object(told, mine)
    return told


def diverged_export(engine: Any, folder: Path) -> list[str]:
    """What each rank is told when weights are not finite; at stage 3 only one rank's part of them is not."""
    parameter = next(iter(engine.module.parameters()))
    values = getattr(parameter, "ds_tensor", parameter)
    if engine.global_rank == engine.world_size - 1 or values is parameter:
        with torch.no_grad():
            values.data.view(-1)[0] = float("nan")
    told = failed_export(engine, folder)
    assert not folder.exists()
    return told


def nan_step(engine: Any, blocks: TokenBlocks) -> dict[str, Any]:
    """One step with a NaN loss on the last rank only."""
    before = weights_digest(engine)
    for micro in range(2):
        one_micro_batch(engine, blocks, first=micro, poison=engine.global_rank == engine.world_size - 1)
    norm, skipped = step_health(engine)
    return {"norm": norm, "skipped": skipped, "unchanged": weights_digest(engine) == before}


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], [int(stage) for stage in sys.argv[3:]])
    sys.stdout.flush()
    # As a real rank leaves: the destructors of a process group can still abort what has ended well.
    os._exit(0)
