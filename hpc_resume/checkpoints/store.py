"""Writing and loading checkpoints of a DeepSpeed engine: the commit protocol.

Every rank writes, syncs and digests its own files; one gather of these lists proves that all of them are durable;
rank 0 writes the manifest and renames it into place. That rename is the commit. DeepSpeed's own `latest` file is
neither written nor read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from hpc_resume.checkpoints import catalog
from hpc_resume.checkpoints.catalog import FileEntry, Manifest
from hpc_resume.errors import CheckpointError, DamagedError
from hpc_resume.journal.writer import sync_file, sync_folder


class SaveError(CheckpointError):
    """A checkpoint could not be written on at least one rank; raised on all of them, and nothing was committed."""


class _KeepErrors:
    """Stand between DeepSpeed and its checkpoint engine, and keep what fails for later.

    `save_checkpoint` has barriers after its writes: a rank that left it early by an exception would leave the
    others waiting there until the collective's time-out.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.error: Exception | None = None

    def save(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._inner.save(*args, **kwargs)
        except (OSError, RuntimeError) as error:
            self.error = self.error or error
            return None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class CheckpointStore:
    """Saves and loads the state of one DeepSpeed engine; every method is called by all ranks together."""

    def __init__(self, folder: Path, engine: Any, group: dist.ProcessGroup | None) -> None:
        """Work in `folder`, with `group` (on the CPU) for the ranks' agreement."""
        self._folder = folder
        self._engine = engine
        self._group = group
        self._rank = dist.get_rank()
        self._world_size = dist.get_world_size()

    def save(self, manifest: Manifest, rank_state: dict[str, Any], before_commit: Callable[[], None]) -> Manifest:
        """Write a new checkpoint and commit it; return its manifest with the list of files.

        `before_commit` runs on rank 0 just before the rename and may raise to prevent it.

        Raises:
            SaveError: on every rank, if any of them failed; the folder stays uncommitted.
        """
        name = manifest.checkpoint.name
        files, problem = self._write(name, rank_state)
        gathered = self._gather((files, problem))
        problems = [f"rank {rank}: {text}" for rank, (_, text) in enumerate(gathered) if text]
        complete: Manifest | None = None
        if self._rank == 0 and not problems:
            merged = {file: entry for entries, _ in gathered for file, entry in entries.items()}
            complete = dataclasses.replace(manifest, files=merged)
            text = _missing_files(complete) or self._commit(complete, before_commit)
            problems = [f"rank 0: {text}"] if text else []
        problems, complete = self._from_rank_0((problems, complete))
        if problems or complete is None:
            raise SaveError(f"checkpoint {name} was not committed: {'; '.join(problems)}")
        return complete

    def load(self, manifest: Manifest) -> dict[str, Any]:
        """Verify a checkpoint on all ranks, load it, and return this rank's own state.

        Raises:
            DamagedError: on every rank, if a file of any of them is missing or differs from its digest.
            CheckpointError: it is whole, but of another number of ranks or another ZeRO stage, or DeepSpeed did
                not load what the manifest says.

        Whatever else goes wrong here, memory or a driver or the network, says nothing about the checkpoint; it ends
        this process, and the checkpoint stays.
        """
        name = manifest.checkpoint.name
        self._check_fits(manifest)
        damage = self._gather(catalog.find_damage(self._folder, manifest, self._rank))
        problems = [f"rank {rank}: {text}" for rank, text in enumerate(damage) if text]
        if problems:
            raise DamagedError(f"checkpoint {name} is damaged: {'; '.join(problems)}")
        path, _ = self._engine.load_checkpoint(str(self._folder), tag=name)
        found = int(self._engine.global_steps)
        if path is None or found != manifest.checkpoint.step:
            raise CheckpointError(
                f"checkpoint {name}: DeepSpeed loaded {path} at step {found}, the manifest says step "
                f"{manifest.checkpoint.step}"
            )
        state: dict[str, Any] = torch.load(
            self._folder / name / _rank_file(self._rank), map_location="cpu", weights_only=False
        )
        return state

    def _write(self, name: str, rank_state: dict[str, Any]) -> tuple[dict[str, FileEntry], str | None]:
        folder = self._folder / name
        # The folder is made, and agreed upon, before DeepSpeed's barriers: see _KeepErrors.
        problem = _attempt(lambda: folder.mkdir(parents=True, mode=0o700)) if self._rank == 0 else None
        problem = self._from_rank_0(problem)
        if problem:
            return {}, problem
        keeper = _KeepErrors(self._engine.checkpoint_engine)
        self._engine.checkpoint_engine = keeper
        # Rank 0 alone would copy two scripts of DeepSpeed's beside each checkpoint: another way to leave it early.
        self._engine._copy_recovery_script = lambda _folder: None
        try:
            self._engine.save_checkpoint(str(self._folder), tag=name, client_state={}, save_latest=False)
        finally:
            self._engine.checkpoint_engine = keeper._inner
            del self._engine._copy_recovery_script
        if keeper.error is not None:
            return {}, str(keeper.error)
        files: dict[str, FileEntry] = {}

        def finish() -> None:
            torch.save(rank_state, folder / _rank_file(self._rank))
            for path in sorted(folder.iterdir()):
                if catalog.owned_by(path.name, self._rank):
                    sync_file(path)
                    files[path.name] = catalog.digest_file(path)

        problem = _attempt(finish)
        return files, problem

    def _commit(self, manifest: Manifest, before_commit: Callable[[], None]) -> str | None:
        folder = self._folder / manifest.checkpoint.name
        temporary = folder / f".{catalog.MANIFEST}.tmp"

        def commit() -> None:
            temporary.write_text(manifest.to_json(), encoding="utf-8")
            sync_file(temporary)
            sync_folder(folder)
            before_commit()
            temporary.rename(folder / catalog.MANIFEST)
            sync_folder(folder)
            sync_folder(self._folder)

        return _attempt(commit)

    def _check_fits(self, manifest: Manifest) -> None:
        stage = int(self._engine.zero_optimization_stage())
        if (manifest.world_size, manifest.zero_stage) != (self._world_size, stage):
            raise CheckpointError(
                f"checkpoint {manifest.checkpoint.name} was saved by {manifest.world_size} ranks with ZeRO "
                f"{manifest.zero_stage}; this attempt has {self._world_size} ranks and ZeRO {stage}, and can't load it"
            )

    def _gather(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self._world_size
        dist.all_gather_object(values, value, group=self._group)
        return values

    def _from_rank_0(self, value: Any) -> Any:
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self._group)
        return box[0]


def _missing_files(manifest: Manifest) -> str | None:
    """Compare the files with what this ZeRO stage writes on this many ranks."""
    names = set(manifest.files)
    ranks = range(manifest.world_size)
    expected = [_rank_file(rank) for rank in ranks]
    if manifest.zero_stage < 3:
        expected.append("mp_rank_00_model_states.pt")
    else:
        expected.extend(f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt" for rank in ranks)
    missing = [name for name in expected if name not in names]
    if manifest.zero_stage > 0:
        suffixes = [f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in ranks]
        missing.extend(s for s in suffixes if not any(name.endswith(s) for name in names))
    return f"DeepSpeed did not write {', '.join(missing)}" if missing else None


def _rank_file(rank: int) -> str:
    return f"rank-{rank:04d}.pt"


def _attempt(action: Callable[[], object]) -> str | None:
    """Do it, or return what went wrong in words: a rank that failed still takes part in the gather."""
    try:
        action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None
