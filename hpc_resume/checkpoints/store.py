"""Writing and loading checkpoints of a DeepSpeed engine: the commit protocol.

Every rank writes, syncs and digests its own files, while training waits or in a thread beside it; one gather of these
lists proves that all of them are durable; rank 0 writes the manifest and renames it into place. That rename is the
commit. DeepSpeed's own `latest` file is neither written nor read.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import xxhash

from hpc_resume.checkpoints import catalog, collectives
from hpc_resume.checkpoints.catalog import FileEntry, Manifest
from hpc_resume.checkpoints.snapshot import HostCopy
from hpc_resume.checkpoints.universal import convert, find_universal_damage, load_universal
from hpc_resume.checkpoints.writing import Staging, Writing, copy_file, write_state
from hpc_resume.errors import CheckpointError, DamagedError, MismatchError
from hpc_resume.journal.writer import sync_file, sync_folder

_log = logging.getLogger(__name__)


class SaveError(CheckpointError):
    """A checkpoint could not be written on at least one rank; raised on all of them, and nothing was committed."""


@dataclass
class Pending:
    """A save that is not committed yet: this rank's part of it."""

    manifest: Manifest
    files: dict[str, FileEntry] = field(default_factory=dict)
    problem: str | None = None
    writing: Writing | None = None

    def is_written(self) -> bool:
        """Tell whether this rank is done with it, well or badly."""
        return self.writing is None or self.writing.is_done()

    def wait(self) -> None:
        """Wait until this rank is done with it."""
        if self.writing is not None:
            self.files, self.problem = self.writing.wait()


class _Catcher:
    """Stands between DeepSpeed and its checkpoint engine: takes what it saves, and keeps what fails for later.

    `save_checkpoint` has barriers after its writes: a rank that left it early by an exception would leave the
    others waiting there until the collective's time-out.
    """

    def __init__(self, inner: Any, take: Callable[[Any, str], None]) -> None:
        self._inner = inner
        self._take = take
        self.error: Exception | None = None

    def save(self, state_dict: Any, path: str) -> None:
        try:
            self._take(state_dict, Path(path).name)
        except Exception as error:
            self.error = self.error or error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class CheckpointStore:
    """Saves and loads the state of one DeepSpeed engine; every method is called by all ranks together."""

    def __init__(
        self, folder: Path, engine: Any, group: dist.ProcessGroup | None, *, staging: Staging | None = None
    ) -> None:
        """Work in `folder`, with `group` (on the CPU) for the ranks' agreement.

        With `staging`, a save beside the training puts its files there at first; else it copies them into memory.
        """
        self._folder = folder
        self._engine = engine
        self._group = group
        self._staging = staging
        self._host = HostCopy()
        self._rank = dist.get_rank()
        self._world_size = dist.get_world_size()

    def begin(self, manifest: Manifest, rank_state: dict[str, Any], *, background: bool) -> Pending:
        """Take the state as it is now; with `background` return once it is copied, else once it is durable.

        The save before must be finished. Nothing is raised, and nothing is committed: see `finish`.
        """
        pending = Pending(manifest)
        name = manifest.checkpoint.name
        place = self._folder / name
        # The folder is made, and agreed upon, before DeepSpeed's barriers: see _Catcher.
        problem = _attempt(lambda: place.mkdir(parents=True, mode=0o700)) if self._rank == 0 else None
        pending.problem = self._from_rank_0(problem)
        if pending.problem:
            return pending
        jobs: dict[str, Callable[[], FileEntry]] = {}
        take = (
            functools.partial(self._put_off, place, jobs) if background else functools.partial(_write, place, pending)
        )
        if background:
            self._host.begin()
        error = self._catch(name, take)
        if error is None:
            pending.problem = _attempt(lambda: take(rank_state, _rank_file(self._rank)))
        else:
            pending.problem = f"{type(error).__name__}: {error}"
        if background:
            clean_up = self._staging.empty if self._staging else lambda: None
            pending.problem = pending.problem or _attempt(self._host.end)
            if pending.problem is None:
                pending.writing = Writing(jobs, clean_up)
            else:
                self._host.begin()  # lets go of what was copied for nothing
                clean_up()
        return pending

    def finish(self, pending: Pending, before_commit: Callable[[], None]) -> Manifest:
        """Wait until all ranks are done and commit; return the manifest with the list of files.

        `before_commit` runs on rank 0 just before the rename and may raise to prevent it.

        Raises:
            SaveError: on every rank, if any of them failed; the folder stays uncommitted.
        """
        pending.wait()
        gathered = self._gather((pending.files, pending.problem))
        problems = [f"rank {rank}: {text}" for rank, (_, text) in enumerate(gathered) if text]
        complete: Manifest | None = None
        if self._rank == 0 and not problems:
            merged = {file: entry for entries, _ in gathered for file, entry in entries.items()}
            complete = dataclasses.replace(pending.manifest, files=merged)
            text = _missing_files(complete) or self._commit(complete, before_commit)
            problems = [f"rank 0: {text}"] if text else []
        problems, complete = self._from_rank_0((problems, complete))
        if problems or complete is None:
            raise SaveError(f"checkpoint {pending.manifest.checkpoint.name} was not committed: {'; '.join(problems)}")
        return complete

    def load(self, manifest: Manifest, *, quick: bool = False, limit_s: float = 1800.0) -> dict[str, Any]:
        """Verify a checkpoint on all ranks, load it, and return the state of one rank: this one's own, if it has one.

        One that another number of ranks saved is converted first, for which DeepSpeed gets `limit_s`; then a rank gets
        the state of another rank, of which only what all ranks have in common is of use. `quick` compares only the
        sizes of files.

        Raises:
            DamagedError: on every rank, if a file of any of them is missing or differs from the manifest.
            MismatchError: on every rank: it is whole, but of something else than this engine.
            CheckpointError: it could not be converted, or DeepSpeed did not load what the manifest says.

        Whatever else goes wrong here, memory or a driver or the network, says nothing about the checkpoint; it ends
        this process, and the checkpoint stays.
        """
        name = manifest.checkpoint.name
        self._check_fits(manifest)
        path: object = name
        if manifest.world_size == self._world_size or manifest.zero_stage == 0:
            self._verify(manifest, quick=quick)
            path, _ = self._engine.load_checkpoint(str(self._folder), tag=name)
        else:
            self._convert(manifest, quick=quick, limit_s=limit_s)
            load_universal(self._engine, self._folder, name)
        found = int(self._engine.global_steps)
        if path is None or found != manifest.checkpoint.step:
            raise CheckpointError(
                f"checkpoint {name}: DeepSpeed loaded {path} at step {found}, the manifest says step "
                f"{manifest.checkpoint.step}"
            )
        state: dict[str, Any] = torch.load(
            self._folder / name / _rank_file(self._rank % manifest.world_size), map_location="cpu", weights_only=False
        )
        return state

    def _verify(self, manifest: Manifest, *, quick: bool) -> None:
        """Compare all files with the manifest; each rank those of its own, and of ranks that are no more."""
        shares = range(self._rank, manifest.world_size, self._world_size)
        found = (catalog.find_damage(self._folder, manifest, rank, quick=quick) for rank in shares)
        damage = self._gather(next((text for text in found if text), None))
        problems = [f"rank {rank}: {text}" for rank, text in enumerate(damage) if text]
        if problems:
            raise DamagedError(f"checkpoint {manifest.checkpoint.name} is damaged: {'; '.join(problems)}")

    def _convert(self, manifest: Manifest, *, quick: bool, limit_s: float) -> None:
        """Make sure that there is a whole copy which any number of ranks can load."""
        name = manifest.checkpoint.name
        # The original has the state of each rank, besides; so it must be whole in any case.
        self._verify(manifest, quick=quick)
        share = (self._rank, self._world_size)
        if not any(self._gather(find_universal_damage(self._folder, name, share, quick=quick))):
            return
        problem = _attempt(lambda: convert(self._folder, manifest, limit_s)) if self._rank == 0 else None
        if problem := self._from_rank_0(problem):
            raise CheckpointError(
                f"checkpoint {name} of {manifest.world_size} ranks can't be made one of {self._world_size}: {problem}"
            )

    def describe(self) -> dict[str, Any]:
        """Return what a manifest says of the engine."""
        shapes = {
            # ZeRO 3 leaves an empty stub in place of a parameter, and its shape under another name.
            name: tuple(getattr(parameter, "ds_shape", parameter.shape))
            for name, parameter in self._engine.module.named_parameters()
        }
        return {
            "world_size": self._world_size,
            "zero_stage": int(self._engine.zero_optimization_stage()),
            "precision": "bf16" if self._engine.bfloat16_enabled() else "fp32",
            "model": xxhash.xxh3_64_hexdigest(repr(sorted(shapes.items())).encode()),
            "parameters": sum(torch.Size(shape).numel() for shape in shapes.values()),
        }

    def _put_off(self, place: Path, jobs: dict[str, Callable[[], FileEntry]], state: Any, name: str) -> None:
        """Copy state out of the model, to be written later."""
        target = place / name
        if self._staging is not None:
            jobs[name] = functools.partial(copy_file, *self._staging.put(state, name), target)
        else:
            jobs[name] = functools.partial(write_state, self._host.copy(state), target)

    def _catch(self, name: str, take: Callable[[Any, str], None]) -> Exception | None:
        """Have DeepSpeed hand over all files of this rank; return what failed."""
        catcher = _Catcher(self._engine.checkpoint_engine, take)
        self._engine.checkpoint_engine = catcher
        # Rank 0 alone would copy two scripts of DeepSpeed's beside each checkpoint: another way to leave it early.
        self._engine._copy_recovery_script = lambda _folder: None
        try:
            self._engine.save_checkpoint(str(self._folder), tag=name, client_state={}, save_latest=False)
        finally:
            self._engine.checkpoint_engine = catcher._inner
            del self._engine._copy_recovery_script
        return catcher.error

    def _commit(self, manifest: Manifest, before_commit: Callable[[], None]) -> str | None:
        folder = self._folder / manifest.checkpoint.name
        temporary = folder / f".{catalog.MANIFEST}.tmp"

        def commit() -> None:
            temporary.write_text(manifest.to_json(), encoding="utf-8")
            sync_file(temporary)
            sync_folder(folder)
            before_commit()
            temporary.rename(folder / catalog.MANIFEST)

        if problem := _attempt(commit):
            return problem
        # From here on it is committed, and nobody may say otherwise.
        for path in (folder, self._folder):
            if problem := _attempt(functools.partial(sync_folder, path)):
                _log.warning("%s is committed, but syncing %s failed: %s", manifest.checkpoint.name, path, problem)
        return None

    def _check_fits(self, manifest: Manifest) -> None:
        """Refuse a checkpoint of something else, with what it is and what there is."""
        here = self.describe()
        rows = {
            "model": [
                f"one of {parts:,} parameters ({digest})"
                for parts, digest in ((manifest.parameters, manifest.model), (here["parameters"], here["model"]))
            ],
            "ZeRO stage": [manifest.zero_stage, here["zero_stage"]],
            "precision": [manifest.precision, here["precision"]],
        }
        differences = [f"its {what} is {then}, here it is {now}" for what, (then, now) in rows.items() if then != now]
        if differences:
            raise MismatchError(f"checkpoint {manifest.checkpoint.name} can't be loaded: {'; '.join(differences)}")

    def _gather(self, value: Any) -> list[Any]:
        return collectives.gather(value, self._group)

    def _from_rank_0(self, value: Any) -> Any:
        return collectives.from_rank_0(value, self._group)


def _write(place: Path, pending: Pending, state: Any, name: str) -> None:
    """Write state at once."""
    pending.files[name] = write_state(state, place / name)


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
