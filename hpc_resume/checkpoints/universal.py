"""Taking up a checkpoint with another number of ranks, through DeepSpeed's universal checkpoints.

With ZeRO 1 to 3 each rank saves its own part of the state, cut for just that number of ranks. Once, and on rank 0
alone, such a checkpoint is converted into one with whole tensors (DeepSpeed's `ds_to_universal`); ranks of any number
then cut their own parts out of it. It lies beside the checkpoint, under a hidden name, with a manifest of its own that
is renamed into place with it. ZeRO 0 needs none of this: its one file holds the whole state.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from hpc_resume.checkpoints import catalog
from hpc_resume.checkpoints.catalog import FileEntry, Manifest
from hpc_resume.errors import CheckpointError
from hpc_resume.journal.writer import sync_file, sync_folder

SCHEMA = 1
STATE = "state"
_GONE_WITHIN_S = 10.0
_MOST_WORKERS = 4
"""Processes that convert side by side; each holds what one rank saved, or one parameter, in host memory."""

_HELD_BACK = {signal.SIGTERM, signal.SIGUSR2}
"""What Slurm sends to every process of a step while the ranks may still save."""


def convert(folder: Path, manifest: Manifest, limit_s: float = 1800.0) -> Path:
    """Make a committed checkpoint loadable for any number of ranks; return where the result lies.

    Called by one rank, while the others wait. The checkpoint must have been verified. A result that is there and whole
    is used again; one that is damaged, or of another checkpoint, is made anew. On the disk it takes as much as the
    checkpoint itself, and while it is made twice that.

    Args:
        folder: The run's folder of checkpoints.
        manifest: The checkpoint's manifest; its ZeRO stage must be 1, 2 or 3.
        limit_s: How long DeepSpeed's converter may take, in seconds.

    Raises:
        CheckpointError: it did not work; nothing is left behind, and the checkpoint itself is as it was.
    """
    name = manifest.checkpoint.name
    if manifest.zero_stage == 0:
        raise ValueError(f"checkpoint {name} was saved with ZeRO 0, which any number of ranks loads as it is")
    result = catalog.conversion_path(folder, name)
    try:
        catalog.discard_conversion_drafts(folder)
        if find_universal_damage(folder, name) is None:
            return result
        catalog.empty_trash(folder)
        catalog.put_conversion_in_trash(folder, name)
        catalog.empty_trash(folder)
        with _draft(folder, name) as draft:
            _run_converter(draft, manifest, limit_s)
            _finish(draft, folder / name)
            draft.rename(result)
        sync_folder(folder)
    except (OSError, _ConverterError) as error:
        raise CheckpointError(
            f"checkpoint {name} of {manifest.world_size} ranks could not be converted for another number of ranks "
            f"({error}); make room in {folder} if the disk is full, or go on with {manifest.world_size} ranks"
        ) from error
    return result


def find_universal_damage(
    folder: Path, name: str, share: tuple[int, int] = (0, 1), *, quick: bool = False
) -> str | None:
    """Compare a converted checkpoint with its manifest; return the first difference in words, or None.

    Args:
        folder: The run's folder of checkpoints.
        name: The checkpoint that was converted.
        share: `(rank, ranks)`: read only this rank's share of the files, so that all of them together read each once.
        quick: Compare sizes and read nothing.

    Raises:
        OSError: a file is there but can't be read, which proves nothing about what is in it.
    """
    place = catalog.conversion_path(folder, name)
    try:
        found = json.loads((place / catalog.MANIFEST).read_text(encoding="utf-8"))
        files = {file: FileEntry(**entry) for file, entry in found["files"].items()}
        source = FileEntry(**found["source"])
        schema = found["schema"]
    except FileNotFoundError:
        return "it has not been converted"
    except (ValueError, TypeError, KeyError, AttributeError):
        return f"{catalog.MANIFEST} of the converted checkpoint is damaged"
    if schema != SCHEMA or source != catalog.digest_file(folder / name / catalog.MANIFEST):
        return "what was converted is not this checkpoint"
    rank, ranks = share
    for file, entry in sorted(files.items())[rank::ranks]:
        if (difference := catalog.difference_of(place / file, entry, quick=quick)) is not None:
            return f"{file} of the converted checkpoint {difference}"
    return None


def load_universal(engine: Any, folder: Path, name: str) -> None:
    """Load a converted checkpoint into a live engine of any number of ranks. All ranks call it, after verification.

    Afterwards the engine is as if it had always been of this size: weights, fp32 masters, moments, step counts,
    settings of the parameter groups, frozen parameters, buffers and `global_steps` are those that were saved, and saves
    and loads are regular ones.

    Raises:
        CheckpointError: DeepSpeed did not load it.
    """
    place = catalog.conversion_path(folder, name)
    engine._config.load_universal_checkpoint = True
    try:
        with _something_in_each_group(engine):
            path, _ = engine.load_checkpoint(str(place), tag=STATE)
    finally:
        engine._config.load_universal_checkpoint = False
    if path is None:
        raise CheckpointError(f"checkpoint {name}: DeepSpeed did not load what it was converted into, {place / STATE}")
    if engine.zero_optimization_stage() == 3:
        _mend_stage_3(engine, place / STATE)
    _load_the_rest(engine, place / STATE)


class _ConverterError(Exception):
    """DeepSpeed's converter failed; the message is the last line that it wrote."""


@contextlib.contextmanager
def _draft(folder: Path, name: str) -> Iterator[Path]:
    # Under a new name each time: a converter that outlived its job must not write into its successor's draft.
    path = Path(tempfile.mkdtemp(prefix=catalog.draft_prefix(name), dir=folder))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)  # renamed by now, if all went well


def _run_converter(draft: Path, manifest: Manifest, limit_s: float) -> None:
    """Convert in a process of its own: it forks, and this one has threads of gloo or NCCL."""
    workers = min(len(os.sched_getaffinity(0)), _MOST_WORKERS)
    command = [
        *(sys.executable, "-m", "hpc_resume.checkpoints.conversion"),
        # Relative: DeepSpeed takes paths for patterns, and what may be in a path of the user's is not ours to say.
        *(f"../{manifest.checkpoint.name}", STATE),
        *(str(min(workers, manifest.world_size)), str(workers)),
    ]
    # It lives as long as this end of the pipe is open, that is, as long as this process at most.
    other_end, lifeline = os.pipe()
    with tempfile.TemporaryFile() as output:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD_BACK)  # inherited: no signal of Slurm's ends it
        try:
            process = subprocess.Popen(
                command,
                cwd=draft,
                env=_environment(),
                stdin=other_end,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(other_end)
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise _ConverterError(f"it took longer than {limit_s:g} s") from None
        finally:
            os.close(lifeline)
            _end_group(process)
        if code != 0:
            output.seek(0)
            raise _ConverterError(_last_line(output.read().decode(errors="replace")) or f"exit code {code}")


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End the converter and its workers, and see them gone: none may write into what is deleted next."""
    end = time.monotonic() + _GONE_WITHIN_S
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        while time.monotonic() < end:
            os.killpg(process.pid, 0)
            time.sleep(0.01)
    process.wait()


def _environment() -> dict[str, str]:
    # The same packages as here, wherever this process was started; and a CPU is enough to cut and join tensors.
    packages = [str(Path(path).resolve()) for path in sys.path]
    changes = {"PYTHONPATH": os.pathsep.join(packages), "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    return {**os.environ, **changes, "CUDA_VISIBLE_DEVICES": ""}


def _last_line(output: str) -> str:
    # A progress bar is drawn over and over in one line; its rests say nothing.
    lines = output.replace("\r", "\n").splitlines()
    lines = [line.strip() for line in lines if not line.rstrip().endswith(("it/s]", "s/it]"))]
    return next((line for line in reversed(lines) if line), "")


def _finish(draft: Path, checkpoint: Path) -> None:
    """Make every file durable, and write down what there is."""
    files: dict[str, FileEntry] = {}
    for place in (path for path in draft.iterdir() if path.name != STATE):
        place.unlink()  # `latest_universal`, which nobody is to believe in
    for path in sorted((draft / STATE).rglob("*")):
        if path.is_dir():
            sync_folder(path)
        else:
            sync_file(path)
            files[str(path.relative_to(draft))] = catalog.digest_file(path)
    sync_folder(draft / STATE)
    content = {
        "schema": SCHEMA,
        "source": asdict(catalog.digest_file(checkpoint / catalog.MANIFEST)),
        "files": {file: asdict(entry) for file, entry in files.items()},
    }
    (draft / catalog.MANIFEST).write_text(json.dumps(content, indent=1), encoding="utf-8")
    sync_file(draft / catalog.MANIFEST)
    sync_folder(draft)


@contextlib.contextmanager
def _something_in_each_group(engine: Any) -> Iterator[None]:
    """Let DeepSpeed load where this rank has no part of a parameter group, only padding: it looks for a first one.

    That is so on the last of many ranks, where norms and biases are few. It is lent a part of no elements.
    """
    lent = []
    if engine.zero_optimization_stage() < 3:
        from deepspeed.utils.tensor_fragment import fragment_address, tensor_fragment

        nothing = fragment_address(numel=0, start=0)
        optimizer = engine.optimizer
        for group, part in zip(optimizer.bit16_groups, optimizer.single_partition_of_fp32_groups, strict=True):
            if all(parameter._hp_mapping is None for parameter in group):
                group[0]._hp_mapping = tensor_fragment(
                    lp_fragment=group[0].detach().flatten()[:0],
                    lp_fragment_address=nothing,
                    hp_fragment=part.detach()[:0],
                    hp_fragment_address=nothing,
                    gradient_dict={},
                    offload_gradient_dict={},
                    use_offload=False,
                    param_group_index=0,
                )
                lent.append(group[0])
    try:
        yield
    finally:
        for parameter in lent:
            parameter._hp_mapping = None


def _mend_stage_3(engine: Any, place: Path) -> None:
    """Undo two mistakes of DeepSpeed's (0.19.8, `load_hp_checkpoint_state_from_checkpoint_dir_stage3`).

    It gives every parameter group the settings of the first, so that norms and biases would be decayed; and all parts
    of the state one and the same tensor as their step count, which each of them then counts up.
    """
    saved = torch.load(place / "zero" / "optimizer_state.pt", map_location="cpu", weights_only=False)
    adam = engine.optimizer.optimizer
    for group, values in zip(adam.param_groups, saved["param_groups"], strict=True):
        group.update({key: value for key, value in values.items() if key != "params"})
    for state in adam.state.values():
        if isinstance(state.get("step"), torch.Tensor):
            state["step"] = state["step"].clone()


def _load_the_rest(engine: Any, place: Path) -> None:
    """Load what no optimizer owns, and DeepSpeed's universal load forgets: frozen parameters and buffers."""
    module = engine.module
    frozen = {key: value for key, value in module.named_parameters() if not value.requires_grad}
    persistent = module.state_dict().keys()
    buffers = {key: value for key, value in module.named_buffers() if key in persistent}
    if not frozen and not buffers:
        return
    stage_3 = engine.zero_optimization_stage() == 3
    first = "zero_pp_rank_0_mp_rank_00_model_states.pt" if stage_3 else "mp_rank_00_model_states.pt"
    saved = torch.load(place / first, map_location="cpu", weights_only=False)
    with torch.no_grad():
        for key, buffer in buffers.items():
            buffer.copy_(saved["module"][key])
        if not stage_3:
            for key, parameter in frozen.items():
                parameter.copy_(saved["module"][key])
        elif frozen:
            _load_frozen_stage_3(frozen, place)


def _load_frozen_stage_3(frozen: dict[str, torch.nn.Parameter], place: Path) -> None:
    import deepspeed

    ranks = len(list(place.glob("zero_pp_rank_*_mp_rank_00_model_states.pt")))
    parts = [
        torch.load(place / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt", map_location="cpu", weights_only=False)[
            "frozen_param_fragments"
        ]
        for rank in range(ranks)
    ]
    for key, parameter in frozen.items():
        with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
            if torch.distributed.get_rank() == 0:
                whole = torch.cat([part[key].flatten() for part in parts])[: parameter.numel()]
                parameter.copy_(whole.view_as(parameter))
