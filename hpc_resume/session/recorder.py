"""What rank 0 writes: its journal file and its metrics. Every rank holds the same history."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from hpc_resume.config.schema import RunConfig
from hpc_resume.errors import DeviceError, RunBusyError, TrainerError
from hpc_resume.journal.claims import is_replaced
from hpc_resume.journal.folder import RunFolder
from hpc_resume.journal.metrics import newest_rows
from hpc_resume.journal.order import segments_in_force
from hpc_resume.journal.patience import briefly
from hpc_resume.journal.reader import read_journal
from hpc_resume.journal.writer import JournalWriter
from hpc_resume.recovery import History
from hpc_resume.recovery import events as ev
from hpc_resume.recovery.history import apply
from hpc_resume.session.agreement import Agreement
from hpc_resume.session.metrics import MetricsWriter
from hpc_resume.session.trace import StateTrace

PACKAGES = ("hpc_resume", "torch", "deepspeed", "transformers", "accelerate")


class Recorder:
    """Keeps the history of the run up to date on all ranks, and rank 0's files with it."""

    def __init__(
        self,
        folder: RunFolder,
        attempt: int,
        claim: int,
        config: RunConfig,
        agreement: Agreement,
        num_samples: int,
        device: str,
        engine: Any = None,
    ) -> None:
        """Read the journal on rank 0 and share its history; open this attempt's files.

        Raises:
            RunBusyError: on all ranks, if a newer supervisor owns the run.
            TrainerError: on all ranks, if the data set changed since an earlier attempt.
            DeviceError: on all ranks, if the run began on GPUs and this attempt has none.
        """
        self._folder = folder
        self._config = config
        self._agreement = agreement
        self.attempt = attempt
        self.claim = claim
        self.versions = {name: version(name) for name in PACKAGES}
        self._writer: JournalWriter | None = None
        self._metrics: MetricsWriter | None = None
        self._samples: MetricsWriter | None = None
        if config.data.record_samples:
            path = folder.samples(attempt, agreement.rank)
            self._samples = MetricsWriter(path, config.supervisor.heartbeat_s)
        self._trace = StateTrace(folder.trace(attempt, agreement.rank), engine, config.training.record_state)
        self._saving = 0
        self._expected: dict[int, float] = {}
        self.healthy_steps = 0
        self._uncertified: deque[tuple[str, int]] = deque()
        journal = read_journal(folder) if agreement.rank == 0 else None
        self.history: History = agreement.from_rank_0(journal.history if journal else History())
        if any(c.opened and c.request.claim > claim for c in self.history.claims):
            # Its attempt may have the same number; the files must be left to it.
            raise RunBusyError(f"{folder.path}: a newer supervisor owns this run; this attempt leaves")
        self._refuse_other_data(num_samples)
        self._refuse_loss_of_gpus(device)
        self.supervisor_pid = next(c.request.pid for c in self.history.claims if c.request.claim == claim)
        ready = ev.WorkersReady(
            attempt=attempt,
            world_size=agreement.world_size,
            num_samples=num_samples,
            device=device,
            versions=self.versions,
            claim=claim,
        )
        if journal is not None:
            self._writer = JournalWriter(folder.attempt(attempt), ready, journal.counts)
            self._metrics = MetricsWriter(folder.metrics(attempt), config.supervisor.heartbeat_s)
        earlier = next((a.ready for a in self.history.attempts if a.ready is not None), None)
        self.history = apply(self.history, ready)
        if earlier is not None:
            self._note_changes(earlier, ready)

    def record(self, event: ev.Event) -> None:
        """Make an event part of the history, on disk first."""
        if self._writer is not None:
            briefly(self._writer.record)(event)
        self.history = apply(self.history, event)

    def committed(self, event: ev.CheckpointCommitted, healthy_steps: int) -> None:
        """Record a commit; `healthy_steps` was the count of them when the state was taken."""
        self.record(event)
        since = self.healthy_steps - healthy_steps
        self._await_healthy_steps(event.checkpoint.name, self._config.checkpoints.certify_after_steps - since)

    def resumed(self, checkpoint: str | None, step: int, position: int, first_samples: tuple[int, ...]) -> None:
        """Record where training goes on, and remember what the steps from there gave before, if they are replayed."""
        self.record(
            ev.Resumed(
                attempt=self.attempt, checkpoint=checkpoint, step=step, position=position, first_samples=first_samples
            )
        )
        self._trace.loaded(step)
        # A checkpoint is certified when so many healthy steps of its branch have followed it. Of earlier attempts the
        # steps up to the checkpoint that is resumed count, all of them: with those the training came as far as another
        # save. What was trained after that one is given up, and counts when it is trained again.
        self._uncertified.clear()
        for old in self.history.lineage:
            if old.name not in self.history.certified and old.step <= step:
                self._await_healthy_steps(old.name, self._config.checkpoints.certify_after_steps - (step - old.step))
        if self._agreement.rank == 0:
            self.sync()
            self._expected = self._losses_after(step, position)

    def step(self, **row: Any) -> None:
        """Write one step's metrics; the first replayed step that differs from before is an event."""
        if self._metrics is not None:
            self._metrics.row(**row)
        before = self._expected.get(row["step"])
        # `repr`, because a NaN that is a NaN again is no difference.
        if before is not None and repr(before) != repr(row["loss"]):
            self._expected.clear()
            self.record(ev.ReplayDiffers(attempt=self.attempt, step=row["step"], before=before, now=row["loss"]))

    def trained(self, step: int, loss: Any, samples: list[int]) -> None:
        """Write down what this rank trained on, and what became of it, as far as the config asks for that."""
        self._trace.step(step, loss, samples)
        if self._samples is not None:
            self._samples.row(step=step, samples=samples)

    def sync(self) -> None:
        """Bring all rows of this rank to disk: what a checkpoint contains must be known when it is committed."""
        for writer in (self._metrics, self._samples):
            if writer is not None:
                writer.sync()

    def certify(self, step: int) -> None:
        """Count a healthy step, and certify the checkpoints that enough of them have followed."""
        self.healthy_steps += 1
        while self._uncertified and self._uncertified[0][1] <= self.healthy_steps:
            name, _ = self._uncertified.popleft()
            self.record(ev.CheckpointCertified(name=name, step=step))

    def phase(self, name: str) -> None:
        """Announce something that may take long, until the next step says that it is over."""
        if self._metrics is not None:
            self._metrics.phase(name)

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Announce a save, and its end; inside another one, that one's end counts."""
        self._saving += 1
        if self._saving == 1:
            self.phase("save")
        try:
            yield
        finally:
            self._saving -= 1
            if self._saving == 0 and self._metrics is not None:
                self._metrics.phase(None)

    def is_replaced(self, *, if_unsure: bool = False) -> bool:
        """Tell whether a newer supervisor owns the run; only a courtesy, see `journal.claims`."""
        try:
            return is_replaced(self._folder, self.claim)
        except OSError:
            return if_unsure  # what keeps a zombie from doing harm is the newer claim's list, not this look

    def close(self) -> None:
        """Bring everything to disk."""
        for writer in (self._metrics, self._samples):
            if writer is not None:
                writer.close()
        if self._writer is not None:
            self._writer.close()

    def _await_healthy_steps(self, name: str, count: int) -> None:
        """Certify a checkpoint after so many healthy steps from now; a newer one is never due before an older."""
        self._uncertified.append((name, self.healthy_steps + count))

    def _losses_after(self, step: int, position: int) -> dict[int, float]:
        """Return the newest loss of each later step that was trained in the order in force, by as many ranks."""
        segments = segments_in_force(self.history)
        if segments and position < segments[-1].start:
            # Behind the newest change the random numbers are drawn anew, so nothing is replayed to the last bit.
            return {}
        order = segments[-1].number if segments else 0
        losses: dict[int, float] = {}
        for attempt in reversed(self.history.attempts):
            if attempt.ready is not None and attempt.ready.world_size != self._agreement.world_size:
                break  # they add up in another order, and all that was trained since rests on that
            for row in newest_rows(self._folder.metrics(attempt.started.attempt)):
                if row.get("order") != order:
                    # Numbers of orders only go up: whatever is older was trained in another order, too.
                    return losses
                if row["step"] <= step:
                    break
                losses.setdefault(row["step"], row["loss"])
        return losses

    def _refuse_other_data(self, num_samples: int) -> None:
        earlier = [a.ready.num_samples for a in self.history.attempts if a.ready is not None]
        if earlier and earlier[0] != num_samples:
            raise TrainerError(
                f"the data set has {num_samples} samples, but this run began with {earlier[0]}; "
                "the order of the rest can't be kept: put the old data back, or begin a new run"
            )

    def _refuse_loss_of_gpus(self, device: str) -> None:
        first = next((a.ready.device for a in self.history.attempts if a.ready is not None), device)
        if device == "cpu" and first not in ("cpu", ""):
            raise DeviceError(
                f"this run began on {first}, but torch sees no GPU on this node; it would go on a thousand times "
                "slower and with other bits: look at the node's driver"
            )

    def _note_changes(self, before: ev.WorkersReady, now: ev.WorkersReady) -> None:
        """Record what a replay to the last bit rests on, and is not what it was."""
        then = {"device": before.device, **before.versions}
        today = {"device": now.device, **now.versions}
        changes = [f"{name} {then[name]} -> {today.get(name)}" for name in then if then[name] != today.get(name)]
        if changes:
            self.record(ev.Disagreement(message=f"not what the run began with: {', '.join(changes)}"))
