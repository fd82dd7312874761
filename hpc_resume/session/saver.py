"""Saving and loading within an attempt: names, manifests, and what the journal says about them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hpc_resume.checkpoints import catalog
from hpc_resume.checkpoints.catalog import Manifest
from hpc_resume.checkpoints.store import CheckpointStore, Pending, SaveError
from hpc_resume.checkpoints.writing import Staging
from hpc_resume.config.schema import RunConfig
from hpc_resume.data_order import Segment
from hpc_resume.errors import ConfigError, DamagedError, MismatchError, RunBusyError
from hpc_resume.journal.folder import RunFolder, refuse_shared
from hpc_resume.recovery import events as ev
from hpc_resume.recovery.retention import Retention, expendable, spent_conversions
from hpc_resume.session.agreement import Agreement
from hpc_resume.session.recorder import Recorder

_EMPTYING_S = 5.0


@dataclass
class _Save:
    """A save that is under way, and what is to happen at its commit."""

    pending: Pending
    before_commit: Callable[[], None]
    began: float
    blocked_s: float
    healthy_steps: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """What a checkpoint held beside DeepSpeed's state."""

    state: dict[str, Any]
    """What one rank had registered."""
    segments: int
    """How many segments the order of the data had."""
    own: bool
    """Whether the state is this rank's own; another number of ranks saved it otherwise."""


class Saver:
    """Drives the checkpoint store for one session; all ranks call everything together, in the same order."""

    def __init__(
        self,
        folder: RunFolder,
        recorder: Recorder,
        agreement: Agreement,
        engine: Any,
        config: RunConfig,
    ) -> None:
        """Pick the first save number that no checkpoint here ever had."""
        self._folder = folder.checkpoints
        self._recorder = recorder
        self._agreement = agreement
        self._config = config.checkpoints
        self._phase_limit_s = config.supervisor.phase_limit_s
        self._retention = retention_of(config)
        self._emptying: threading.Thread | None = None
        self._staging = self._stage(folder, config.checkpoints.staging_dir)
        self._store = CheckpointStore(self._folder, engine, agreement.group, staging=self._staging)
        self._engine_facts = self._store.describe()
        self._save: _Save | None = None
        if agreement.rank == 0:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        number = catalog.next_save_number(self._folder, recorder.history.known) if agreement.rank == 0 else 0
        self._save_number = agreement.from_rank_0(number)

    @property
    def is_under_way(self) -> bool:
        """Whether a save was begun and not finished; the same on all ranks."""
        return self._save is not None

    def is_written(self) -> bool:
        """Tell whether this rank has nothing left to write."""
        return self._save is None or self._save.pending.is_written()

    def begin(
        self,
        step: int,
        position: int,
        segments: tuple[Segment, ...],
        state: dict[str, Any],
        before_commit: Callable[[], None],
        *,
        background: bool,
    ) -> None:
        """Take the state as it is now; `finish` commits it. The save before must be finished.

        With `background` this returns as soon as the state is copied; else once it is on the disk.

        Raises:
            RunBusyError: on all ranks, if a newer supervisor owns the run.
        """
        recorder = self._recorder
        checkpoint = ev.Checkpoint(
            name=catalog.checkpoint_name(step, self._save_number),
            step=step,
            position=position,
            branch=recorder.history.branch,
            save_number=self._save_number,
            parent=recorder.history.lineage[-1].name if recorder.history.lineage else None,
        )
        self._save_number += 1
        with recorder.saving():
            self._leave_if_replaced()
            began = time.monotonic()
            pending = self._store.begin(self._manifest(checkpoint, segments), state, background=background)
            self._save = _Save(pending, before_commit, began, time.monotonic() - began, recorder.healthy_steps)

    def finish(self) -> ev.CheckpointCommitted | ev.SaveFailed:
        """Commit the save that is under way, and record it; wait for what is still being written.

        Returns what came of it; a failure is not recorded, as the caller decides about it.

        Raises:
            RunBusyError: on all ranks, if a newer supervisor owns the run.
        """
        assert self._save is not None
        save, self._save = self._save, None
        with self._recorder.saving():
            return self._finish(save)

    def _finish(self, save: _Save) -> ev.CheckpointCommitted | ev.SaveFailed:
        recorder, checkpoint = self._recorder, save.pending.manifest.checkpoint
        waits = time.monotonic()

        def check() -> None:
            if recorder.is_replaced():
                raise RunBusyError("a newer supervisor owns this run")
            save.before_commit()

        try:
            self._store.finish(save.pending, check)
        except SaveError as error:
            self._leave_if_replaced()
            # What it wrote may be what filled the disk.
            if self._agreement.rank == 0:
                with contextlib.suppress(OSError):
                    catalog.discard(self._folder, checkpoint.name)
            return ev.SaveFailed(attempt=recorder.attempt, step=checkpoint.step, message=str(error))
        now = time.monotonic()
        committed = ev.CheckpointCommitted(
            attempt=recorder.attempt,
            checkpoint=checkpoint,
            seconds=round(now - save.began, 3),
            blocked_s=round(save.blocked_s + now - waits, 3),
        )
        recorder.committed(committed, save.healthy_steps)
        self._delete_expendable()
        return committed

    def load(self, name: str, segments: tuple[Segment, ...]) -> Loaded:
        """Load a checkpoint on all ranks.

        Raises:
            DamagedError: on all ranks, with the reason.
            MismatchError: on all ranks: the checkpoint is whole, but of something else, or of somebody else.
        """
        manifest, problem = self._agreement.from_rank_0(self._read(name))
        if isinstance(problem, MismatchError):
            raise problem
        if manifest is None:
            raise DamagedError(f"checkpoint {name} is damaged: {problem}")
        recorded = self._recorder.history.checkpoint(name)
        if manifest.checkpoint != recorded:
            raise DamagedError(
                f"checkpoint {name} is damaged: its manifest says {manifest.checkpoint}, the journal {recorded}"
            )
        known = _plain(segments)
        if manifest.segments != known[: len(manifest.segments)]:
            self._note(
                f"checkpoint {name} was saved under another data order than the journal has; the journal's is used"
            )
        foreign = self._agreement.from_rank_0(
            catalog.find_foreign(self._folder, manifest) if self._agreement.rank == 0 else []
        )
        if foreign:
            self._note(f"checkpoint {name} holds {', '.join(foreign)}, which is no part of it and is left alone")
        began = time.monotonic()
        quick = self._config.verify == "quick"
        # Half of what silence may take; syncing and reading what was converted takes the other half.
        state = self._store.load(manifest, quick=quick, limit_s=self._phase_limit_s / 2)
        before, now = manifest.world_size, self._agreement.world_size
        if before != now:
            seconds = round(time.monotonic() - began, 3)
            attempt = self._recorder.attempt
            self._recorder.record(
                ev.CheckpointConverted(attempt=attempt, name=name, before=before, now=now, seconds=seconds)
            )
        return Loaded(state=state, segments=len(manifest.segments), own=before == now)

    def set_aside(self, name: str, reason: str) -> None:
        """Rename a checkpoint that was rejected, after that was recorded."""
        if self._agreement.rank == 0:
            catalog.set_aside(self._folder, name)
        self._agreement.barrier()
        self._recorder.record(ev.CheckpointQuarantined(name=name, reason=f"rejected: {reason}"))

    def close(self) -> None:
        """Leave nothing on this node, and as little as possible in the trash."""
        if self._emptying is not None:
            # What is left after that the next claim removes; nobody should wait for it, least of all in a grace time.
            self._emptying.join(timeout=_EMPTYING_S)
        if self._staging is not None and self._save is None:
            self._staging.remove()

    def _delete_expendable(self) -> None:
        """Delete what nothing needs any more, after a commit; see `recovery.retention` for why that is safe."""
        recorder = self._recorder
        spent = spent_conversions(recorder.history)
        doomed = expendable(recorder.history, self._retention)
        for one in doomed:
            recorder.record(ev.CheckpointDeleted(name=one.name, reason=one.reason))
        if self._agreement.rank != 0 or not (spent or doomed) or recorder.is_replaced(if_unsure=True):
            return
        for name in spent:
            with contextlib.suppress(OSError):
                catalog.put_conversion_in_trash(self._folder, name)
        for one in doomed:
            with contextlib.suppress(OSError):  # what is recorded and can't be done now is done by the next claim
                catalog.put_in_trash(self._folder, one.name)
        if self._emptying is None or not self._emptying.is_alive():
            self._emptying = threading.Thread(target=catalog.empty_trash, args=(self._folder,), daemon=True)
            self._emptying.start()

    def _stage(self, folder: RunFolder, parent: str | None) -> Staging | None:
        """Make this rank's staging folder, on all ranks or on none."""
        if parent is None:
            return None
        staging, problem = None, None
        try:
            staging = Staging(parent, folder.path, self._recorder.attempt, self._agreement.rank)
        except ConfigError as error:
            problem = error
        for found in self._agreement.gather(problem):
            if found is not None:
                raise found
        return staging

    def _leave_if_replaced(self) -> None:
        if self._agreement.from_rank_0(self._recorder.is_replaced()):
            raise RunBusyError(f"{self._folder.parent}: a newer supervisor owns this run; this attempt leaves")

    def _note(self, message: str) -> None:
        self._recorder.record(ev.Disagreement(message=message))

    def _read(self, name: str) -> tuple[Manifest | None, MismatchError | str]:
        if self._agreement.rank != 0:
            return None, ""
        try:
            manifest = catalog.read_manifest(self._folder, name)
            refuse_shared(self._folder / name)
        except ValueError as error:
            return None, str(error)
        except MismatchError as error:
            return None, error
        except ConfigError as error:
            return None, MismatchError(f"checkpoint {name} is not loaded: {error}")
        return manifest, ""

    def _manifest(self, checkpoint: ev.Checkpoint, segments: tuple[Segment, ...]) -> Manifest:
        recorder = self._recorder
        ready = recorder.history.attempts[-1].ready
        return Manifest(
            schema=catalog.SCHEMA,
            checkpoint=checkpoint,
            claim=recorder.claim,
            attempt=recorder.attempt,
            num_samples=ready.num_samples if ready else 0,
            segments=_plain(segments),
            versions=recorder.versions,
            **self._engine_facts,
        )


def retention_of(config: RunConfig) -> Retention:
    """Return what a run's settings say about the checkpoints that it keeps."""
    settings = config.checkpoints
    return Retention(
        keep_last=settings.keep_last,
        keep_every_steps=settings.keep_every_steps,
        keep_quarantined=settings.keep_quarantined,
        loss_budget=config.recovery.loss_budget,
        reach_steps=config.monitor.horizon_steps + config.recovery.rollback_margin_steps,
        interval_steps=None if settings.interval_steps == "auto" else settings.interval_steps,
    )


def _plain(segments: tuple[Segment, ...]) -> list[list[Any]]:
    """Return segments as JSON has them."""
    return [[s.start, s.number, [s.window.start, s.window.end, s.window.drop] if s.window else None] for s in segments]
