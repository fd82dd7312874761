"""The finished weights: written as a plain transformers folder, and boiled down to one number for comparison."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from hpc_resume.errors import DivergedError, ExportError, HpcResumeError
from hpc_resume.journal.writer import sync_file, sync_folder
from hpc_resume.trainers.engine import Engine
from hpc_resume.trainers.model import load_tokenizer


def export_model(engine: Engine, tokenizer_name: str, folder: Path) -> None:
    """Write model and tokenizer as a `save_pretrained` folder, which appears whole or not at all. All ranks call it.

    Rank 0 gathers the weights in its host memory (at stage 3 one parameter at a time) and writes; a folder that is
    already there is replaced.

    Raises:
        DivergedError: on all ranks, if weights are not finite. The loss is taken before each update, so nobody else
            can see what the very last one did. Nothing is written then.
        ExportError: on all ranks, if writing failed.
    """
    weights = _whole_weights(engine)
    outcome: list[HpcResumeError | None] = [None]
    if engine.global_rank == 0:
        # A buffer may well hold an infinity: a mask does.
        buffers = dict(engine.module.named_buffers()).keys()
        try:
            require_finite({name: weights[name] for name in weights.keys() - buffers})
            write_model(engine.module, weights, tokenizer_name, folder, replace=True)
        except DivergedError as error:
            outcome = [error]
        except Exception as error:  # whatever it is, the other ranks must hear of it
            outcome = [ExportError(f"exporting the model to {folder} failed ({type(error).__name__}: {error})")]
    torch.distributed.broadcast_object_list(outcome, src=0)
    if outcome[0] is not None:
        raise outcome[0]


def require_finite(weights: dict[str, torch.Tensor], where: str = "after the last step") -> None:
    """Refuse weights that hold a NaN or an infinity with a `DivergedError` that names some of them."""
    bad = sorted(name for name, values in weights.items() if not bool(torch.isfinite(values).all()))
    if bad:
        more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
        raise DivergedError(
            f"{len(bad)} of the {len(weights)} weights are not finite {where}: {', '.join(bad[:3])}{more}"
        )


def write_model(
    model: Any, weights: dict[str, torch.Tensor], tokenizer_name: str, folder: Path, *, replace: bool
) -> None:
    """Write weights as a `save_pretrained` folder of this model, with the tokenizer, whole or not at all.

    The model's own weights are not looked at, and may be without memory. A folder that is already there is replaced,
    or, without `replace`, an error.
    """
    draft = folder.with_name(f".{folder.name}.draft")
    old = folder.with_name(f".{folder.name}.old")
    for leftover in (draft, old):
        shutil.rmtree(leftover, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    config = model.config
    config.use_cache, config.dtype = True, next(iter(weights.values())).dtype
    try:
        model.save_pretrained(draft, state_dict=weights)
        load_tokenizer(tokenizer_name).save_pretrained(draft)
        for path in draft.iterdir():
            sync_file(path)
        sync_folder(draft)
        if replace and folder.exists():
            folder.rename(old)
        draft.rename(folder)
    finally:
        config.use_cache = False
        shutil.rmtree(draft, ignore_errors=True)  # only there if something went wrong
    sync_folder(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def weights_digest(engine: Engine) -> str:
    """Sha256 over the names, shapes and fp32 values of all weights; equal on all ranks. All ranks call it.

    Taken from the optimizer's fp32 weights where there are any, so that two runs which agree here were the same to the
    last bit. The digest does not depend on how ZeRO cut the weights.
    """
    digest = hashlib.sha256()
    for name, values in _fp32_weights(engine):
        if engine.global_rank == 0:
            digest.update(f"{name} {tuple(values.shape)}\n".encode())
            digest.update(values.detach().to("cpu", torch.float32).contiguous().numpy().tobytes())
    result = [digest.hexdigest()]
    torch.distributed.broadcast_object_list(result, src=0)
    return result[0]


def _fp32_weights(engine: Engine) -> Iterator[tuple[str, torch.Tensor]]:
    from deepspeed.utils import safe_get_full_fp32_param

    unpartitioned = _stage_0_masters(engine)
    for name, parameter in engine.module.named_parameters():
        if parameter.requires_grad:
            values = safe_get_full_fp32_param(parameter)
            yield name, unpartitioned.get(id(parameter), parameter) if values is None else values


def _stage_0_masters(engine: Engine) -> dict[int, torch.Tensor]:
    # Stage 0 in bf16 has fp32 copies that DeepSpeed's own accessor does not find; stage 0 in fp32 has no copies.
    pairs = zip(
        (parameter for group in getattr(engine.optimizer, "fp16_groups", ()) for parameter in group),
        (parameter for group in getattr(engine.optimizer, "fp32_groups", ()) for parameter in group),
        strict=False,
    )
    return {id(parameter): master for parameter, master in pairs}


def _whole_weights(engine: Engine) -> dict[str, torch.Tensor]:
    import deepspeed

    weights: dict[str, torch.Tensor] = {}
    for name, parameter in engine.module.named_parameters():
        with deepspeed.zero.GatheredParameters([parameter]):
            if engine.global_rank == 0:
                weights[name] = parameter.detach().to("cpu", copy=True)
    if engine.global_rank == 0:
        buffers = dict(engine.module.named_buffers())
        kept = buffers.keys() & engine.module.state_dict().keys()
        weights.update({name: buffers[name].detach().to("cpu", copy=True) for name in sorted(kept)})
    return weights
