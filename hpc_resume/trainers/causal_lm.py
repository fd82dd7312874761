"""The built-in trainer: next-token prediction with any causal language model of transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from hpc_resume.config.deepspeed_json import resolve_deepspeed
from hpc_resume.config.schema import RunConfig
from hpc_resume.errors import DivergedError
from hpc_resume.journal.folder import RunFolder
from hpc_resume.session import Session
from hpc_resume.trainers.engine import (
    Engine,
    build_engine,
    close_engine,
    device_name,
    get_learning_rate,
    loss_scale,
    protects_weights,
    set_learning_rate,
    step_health,
)
from hpc_resume.trainers.export import export_model, weights_digest
from hpc_resume.trainers.model import Model, build_model
from hpc_resume.trainers.schedule import learning_rate
from hpc_resume.trainers.shared_samples import share_samples
from hpc_resume.trainers.token_blocks import TokenBlocks


def train_causal_lm(
    folder: RunFolder, attempt: int, claim: int, config: RunConfig, stop_requested: Callable[[], bool]
) -> None:
    """Train one attempt, from where the journal says to where it ends.

    Raises:
        TrainerError: model, data or settings can't be used.
        DeviceError: this node does not have the GPUs that it should.
        ExportError: the finished weights can't be written.
    """
    deepspeed = resolve_deepspeed(config.training.deepspeed, config)
    engine = build_engine(config, deepspeed, lambda: _make_model(folder, attempt, claim, config))
    blocks = TokenBlocks.open(folder.data)
    session = Session(
        folder=folder,
        attempt=attempt,
        claim=claim,
        config=config,
        engine=engine,
        num_samples=len(blocks),
        stop_requested=stop_requested,
        poison=lambda: _poison(engine),
        weights_at_risk=not protects_weights(engine),
        device=device_name(engine),
    )
    try:
        session.resume()
        while session.running:
            batches = _loader(blocks, session, config, engine.device)
            while _train_step(engine, batches, session, config):
                pass
            del batches
        if session.reached_end:
            session.announce("export")
            try:
                export_model(engine, config.model.tokenizer, folder.model)
            except DivergedError as error:
                session.reject_result(str(error))
            else:
                session.finish(weights_digest(engine), str(folder.model))
    finally:
        session.close()
    close_engine()


def _train_step(
    engine: Engine, batches: Iterator[dict[str, torch.Tensor]], session: Session, config: RunConfig
) -> bool:
    """Train one optimizer step; return whether the next one takes its samples from the same batches."""
    rate = learning_rate(config.training, session.completed_steps + 1) * session.lr_factor
    set_learning_rate(engine, rate)
    losses = []
    samples: list[int] = []
    for _ in range(config.training.gradient_accumulation_steps):
        batch = next(batches)
        samples += batch.pop("sample").tolist()
        loss = engine(**batch).loss
        engine.backward(loss)
        if get_learning_rate(engine) != rate:
            raise RuntimeError(f"the learning rate is {get_learning_rate(engine)}, but was set to {rate}")
        engine.step()
        losses.append(loss.detach())
    grad_norm, skipped = step_health(engine)
    return session.step(
        torch.stack(losses).mean(),
        grad_norm=grad_norm,
        loss_scale=loss_scale(engine),
        skipped=skipped,
        learning_rate=rate,
        samples=samples,
    )


def _make_model(folder: RunFolder, attempt: int, claim: int, config: RunConfig) -> Model:
    """Build the model, once the samples are there that tell the size of the vocabulary."""
    blocks = share_samples(folder, attempt, claim, config, dist.get_rank())
    facts = blocks.facts
    return build_model(
        config, vocab_size=facts.vocab_size, eos_token_id=facts.eos_token_id, pad_token_id=facts.pad_token_id
    )


def _loader(
    blocks: TokenBlocks, session: Session, config: RunConfig, device: torch.device
) -> Iterator[dict[str, torch.Tensor]]:
    workers = config.data.loader_workers
    loader: Any = torch.utils.data.DataLoader(
        _Numbered(blocks),
        batch_sampler=session.batches(),
        num_workers=workers,
        pin_memory=device.type == "cuda",
        # Its own generator: DataLoader would draw from the global one, and a resumed run would differ from then on.
        generator=torch.Generator(),
    )
    for batch in loader:
        # The numbers stay on the host: moving them back from a GPU would make the step wait.
        numbers = {"sample": batch.pop("sample")}
        yield numbers | {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}


class _Numbered(torch.utils.data.Dataset[dict[str, Any]]):
    """Samples that carry their own number, so that the record says what was trained on, not what was meant to be."""

    def __init__(self, blocks: TokenBlocks) -> None:
        self._blocks = blocks

    def __len__(self) -> int:
        return len(self._blocks)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"sample": index, **self._blocks[index]}


def _poison(engine: Engine) -> None:
    """Turn this rank's weights into NaN."""
    with torch.no_grad():
        for parameter in engine.module.parameters():
            # ZeRO 3 keeps this rank's part beside an empty stub.
            getattr(parameter, "ds_tensor", parameter).data.fill_(float("nan"))
