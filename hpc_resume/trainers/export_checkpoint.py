"""A committed checkpoint as a plain transformers folder, in one process, without a GPU, and without the run's ranks.

What comes out is, bit for bit, what the run itself would have exported at that step. Nothing of the run is changed.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hpc_resume.checkpoints import catalog
from hpc_resume.checkpoints.catalog import Manifest
from hpc_resume.config.schema import RunConfig
from hpc_resume.errors import CheckpointError, DamagedError, DivergedError, ExportError, MismatchError, TrainerError
from hpc_resume.journal.folder import RunFolder, refuse_shared
from hpc_resume.trainers.export import require_finite, write_model
from hpc_resume.trainers.model import Model, build_skeleton
from hpc_resume.trainers.token_blocks import FACTS, read_block_facts


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """What was written, and where."""

    path: str
    step: int
    checkpoint: str
    parameters: int


def export_checkpoint(
    folder: RunFolder, config: RunConfig, name: str, output: Path, *, force: bool, say: Callable[[str], None]
) -> Exported:
    """Verify a checkpoint of a run and write its weights, with the tokenizer, to a folder that must not exist.

    Host memory for about one copy of the model is needed. `force` exports weights that are not finite as well; `say`
    is told what is going on.

    Raises:
        CheckpointError: the checkpoint is gone, damaged, or of another model.
        DivergedError: its weights are not finite.
        ExportError: writing failed.
        TrainerError: model or tokenizer can't be had any more.
        ConfigError: others can write to the run's folder.
    """
    refuse_shared(folder.path)
    with _found(folder.checkpoints, name) as checkpoints:
        try:
            manifest = _verified(checkpoints, name, say)
            say(f"reading the weights of {name}")
            model = _skeleton(folder, config, manifest)
            weights = _weights(checkpoints / name, manifest, model)
            parameters = {name for name, _ in model.named_parameters()}
            _require_finite({key: weights[key] for key in parameters}, name, force, say)
            count = sum(weights[key].numel() for key in parameters)
            say(f"writing {output}")
            _write(model, weights, config, output)
        except OSError as error:
            raise CheckpointError(
                f"checkpoint {name} can't be read ({error}); if the run has just deleted it, choose a newer one"
            ) from error
    return Exported(path=str(output), step=manifest.checkpoint.step, checkpoint=name, parameters=count)


@contextlib.contextmanager
def _found(checkpoints: Path, name: str) -> Iterator[Path]:
    """Yield a folder in which the checkpoint has its own name, also if it was set aside under another."""
    place = catalog.find(checkpoints, name)
    if place is None:
        raise CheckpointError(f"checkpoint {name} is not in {checkpoints} any more; choose another one (--step)")
    refuse_shared(place)
    if place.name == name:
        yield checkpoints
        return
    with tempfile.TemporaryDirectory() as view:
        (Path(view) / name).symlink_to(place.resolve())
        yield Path(view)


def _verified(checkpoints: Path, name: str, say: Callable[[str], None]) -> Manifest:
    try:
        manifest = catalog.read_manifest(checkpoints, name)
        size = sum(entry.size for entry in manifest.files.values())
        say(f"verifying {name}: {len(manifest.files)} files, {size / 1e6:,.1f} MB")
        damage = catalog.find_damage(checkpoints, manifest)
    except ValueError as error:
        damage = str(error)
    if damage is not None:
        if not (checkpoints / name).exists():
            raise CheckpointError(f"checkpoint {name} vanished while it was read; choose a newer one (--step)")
        raise DamagedError(f"checkpoint {name} is damaged: {damage}; choose another one (--step)")
    return manifest


def _skeleton(folder: RunFolder, config: RunConfig, manifest: Manifest) -> Model:
    facts = read_block_facts(folder.data)
    if facts is None:
        raise TrainerError(
            f"{folder.data / FACTS} is missing, which says how many tokens the model knows; put it back, or take "
            f"{folder.model} if the run has finished"
        )
    return build_skeleton(
        config,
        vocab_size=facts.vocab_size,
        eos_token_id=facts.eos_token_id,
        pad_token_id=facts.pad_token_id,
        dtype=_dtype(manifest),
    )


def _dtype(manifest: Manifest) -> torch.dtype:
    return torch.bfloat16 if manifest.precision == "bf16" else torch.float32


def _weights(place: Path, manifest: Manifest, model: Model) -> dict[str, torch.Tensor]:
    """Return parameters and persistent buffers as the run would have exported them, tied ones once."""
    buffers = sorted(dict(model.named_buffers()).keys() & model.state_dict().keys())
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    try:
        if manifest.zero_stage < 3:
            found = _load(place / "mp_rank_00_model_states.pt")["module"]
            weights = {name: found[name] for name in (*shapes, *buffers)}
        else:
            weights = _gathered(place, shapes, _dtype(manifest))
            found = _load(place / "zero_pp_rank_0_mp_rank_00_model_states.pt")["module"]
            weights.update({name: found[name] for name in buffers})
    except OSError:
        raise
    except Exception as error:  # its bytes are right, so it is of another model, or of another version of DeepSpeed
        raise MismatchError(
            f"the weights of checkpoint {place.name} can't be read ({type(error).__name__}: {error}); use the versions "
            f"that saved it: {', '.join(f'{name} {version}' for name, version in manifest.versions.items())}"
        ) from error
    for name, shape in shapes.items():
        if weights[name].shape != shape:
            raise MismatchError(
                f"checkpoint {place.name} is not of this model: {name} is {tuple(weights[name].shape)} there, and "
                f"{tuple(shape)} by the run's config.yaml; were its model or tokenizer changed?"
            )
    return weights


def _load(path: Path) -> dict[str, Any]:
    # Mapped, not read: optimizer state lies in the same file at stage 0, and is not wanted.
    state: dict[str, Any] = torch.load(path, map_location="cpu", mmap=True, weights_only=False)
    return state


def _gathered(place: Path, names: dict[str, torch.Size], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Join the ranks' parts of ZeRO 3, one parameter at a time.

    The parts are the optimizer's, in fp32; rounding is what DeepSpeed does after each step to have the model's own.
    """
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    parts = get_fp32_state_dict_from_zero_checkpoint(str(place.parent), tag=place.name, lazy_mode=True)
    return {name: parts[name].contiguous().to(dtype) for name in names}


def _require_finite(weights: dict[str, torch.Tensor], name: str, force: bool, say: Callable[[str], None]) -> None:
    try:
        require_finite(weights, where=f"in checkpoint {name}")
    except DivergedError as error:
        if not force:
            raise DivergedError(f"{error}; choose another one (--step), or export it all the same (--force)") from error
        say(f"warning: {error}")


def _write(model: Model, weights: dict[str, torch.Tensor], config: RunConfig, output: Path) -> None:
    try:
        write_model(model, weights, config.model.tokenizer, output, replace=False)
    except TrainerError:
        raise
    except Exception as error:  # transformers has errors of its own for what can't be written
        raise ExportError(f"exporting to {output} failed ({type(error).__name__}: {error})") from error
