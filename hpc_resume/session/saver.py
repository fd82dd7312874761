"""Saving and loading within an attempt: names, manifests, and what the journal says about them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from hpc_resume.checkpoints import catalog
from hpc_resume.checkpoints.catalog import Manifest
from hpc_resume.checkpoints.store import CheckpointStore, SaveError
from hpc_resume.data_order import Segment
from hpc_resume.errors import DamagedError, RunBusyError
from hpc_resume.journal.folder import RunFolder
from hpc_resume.recovery import events as ev
from hpc_resume.session.agreement import Agreement
from hpc_resume.session.recorder import Recorder


class Saver:
    """Drives the checkpoint store for one session."""

    def __init__(self, folder: RunFolder, recorder: Recorder, agreement: Agreement, engine: Any) -> None:
        """Pick the first save number that no checkpoint here ever had."""
        self._folder = folder.checkpoints
        self._recorder = recorder
        self._agreement = agreement
        self._engine = engine
        self._store = CheckpointStore(self._folder, engine, agreement.group)
        if agreement.rank == 0:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._save_number = agreement.from_rank_0(catalog.next_save_number(self._folder, recorder.history.known))

    def save(
        self,
        step: int,
        position: int,
        segments: tuple[Segment, ...],
        state: dict[str, Any],
        before_commit: Callable[[], None],
    ) -> ev.SaveFailed | None:
        """Commit a checkpoint and record it; return the event of a failure, about which the caller decides.

        Raises:
            RunBusyError: on all ranks, if a newer supervisor owns the run.
        """
        recorder = self._recorder
        recorder.phase("save")
        if self._agreement.from_rank_0(recorder.is_replaced()):
            raise RunBusyError(f"{self._folder.parent}: a newer supervisor owns this run; this attempt leaves")
        began = time.monotonic()
        checkpoint = ev.Checkpoint(
            name=catalog.checkpoint_name(step, self._save_number),
            step=step,
            position=position,
            branch=recorder.history.branch,
            save_number=self._save_number,
            parent=recorder.history.lineage[-1].name if recorder.history.lineage else None,
        )
        self._save_number += 1

        def check() -> None:
            if recorder.is_replaced():
                raise RunBusyError("a newer supervisor owns this run")
            before_commit()

        try:
            self._store.save(self._manifest(checkpoint, segments), state, check)
        except SaveError as error:
            recorder.phase(None)
            if self._agreement.from_rank_0(recorder.is_replaced()):
                raise RunBusyError(
                    f"{self._folder.parent}: a newer supervisor owns this run; this attempt leaves"
                ) from error
            # What it wrote may be what filled the disk.
            if self._agreement.rank == 0:
                with contextlib.suppress(OSError):
                    catalog.discard(self._folder, checkpoint.name)
            return ev.SaveFailed(attempt=recorder.attempt, step=step, message=str(error))
        seconds = round(time.monotonic() - began, 3)
        recorder.record(ev.CheckpointCommitted(attempt=recorder.attempt, checkpoint=checkpoint, seconds=seconds))
        recorder.phase(None)
        return None

    def load(self, name: str, segments: tuple[Segment, ...]) -> tuple[dict[str, Any], int]:
        """Load a checkpoint on all ranks; return this rank's own state, and how many segments it was saved under.

        Raises:
            DamagedError: on all ranks, with the reason.
        """
        manifest, problem = self._agreement.from_rank_0(self._read(name))
        if manifest is None:
            raise DamagedError(f"checkpoint {name} is damaged: {problem}")
        recorded = self._recorder.history.checkpoint(name)
        if manifest.checkpoint != recorded:
            raise DamagedError(
                f"checkpoint {name} is damaged: its manifest says {manifest.checkpoint}, the journal {recorded}"
            )
        known = _plain(segments)
        if manifest.segments != known[: len(manifest.segments)]:
            self._recorder.record(
                ev.Disagreement(
                    message=f"checkpoint {name} was saved under another data order than the journal has; "
                    "the journal's is used"
                )
            )
        return self._store.load(manifest), len(manifest.segments)

    def set_aside(self, name: str, reason: str) -> None:
        """Rename a checkpoint that was rejected, after that was recorded."""
        if self._agreement.rank == 0:
            catalog.set_aside(self._folder, name)
        self._agreement.barrier()
        self._recorder.record(ev.CheckpointQuarantined(name=name, reason=f"rejected: {reason}"))

    def _read(self, name: str) -> tuple[Manifest | None, str]:
        if self._agreement.rank != 0:
            return None, ""
        try:
            return catalog.read_manifest(self._folder, name), ""
        except ValueError as error:
            return None, str(error)

    def _manifest(self, checkpoint: ev.Checkpoint, segments: tuple[Segment, ...]) -> Manifest:
        recorder = self._recorder
        ready = recorder.history.attempts[-1].ready
        return Manifest(
            schema=catalog.SCHEMA,
            checkpoint=checkpoint,
            claim=recorder.claim,
            attempt=recorder.attempt,
            world_size=self._agreement.world_size,
            zero_stage=int(self._engine.zero_optimization_stage()),
            precision="bf16" if self._engine.bfloat16_enabled() else "fp32",
            num_samples=ready.num_samples if ready else 0,
            segments=_plain(segments),
            versions=recorder.versions,
        )


def _plain(segments: tuple[Segment, ...]) -> list[list[Any]]:
    """Return segments as JSON has them."""
    return [[s.start, s.number, [s.window.start, s.window.end, s.window.drop] if s.window else None] for s in segments]
