"""What rank 0 writes: its journal file and its metrics. Every rank holds the same history."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from hpc_resume.config.schema import RunConfig
from hpc_resume.errors import TrainerError
from hpc_resume.journal.claims import is_replaced
from hpc_resume.journal.folder import RunFolder
from hpc_resume.journal.metrics import read_rows
from hpc_resume.journal.order import segments_in_force
from hpc_resume.journal.reader import read_journal
from hpc_resume.journal.writer import JournalWriter
from hpc_resume.recovery import History
from hpc_resume.recovery import events as ev
from hpc_resume.recovery.history import apply
from hpc_resume.session.agreement import Agreement
from hpc_resume.session.metrics import MetricsWriter

PACKAGES = ("hpc_resume", "torch", "deepspeed", "transformers", "accelerate")


class Recorder:
    """Keeps the history of the run up to date on all ranks, and rank 0's files with it."""

    def __init__(
        self, folder: RunFolder, attempt: int, config: RunConfig, agreement: Agreement, num_samples: int
    ) -> None:
        """Read the journal on rank 0 and share its history; open this attempt's files.

        Raises:
            TrainerError: on all ranks, if the data set changed since an earlier attempt.
        """
        self._folder = folder
        self._config = config
        self._agreement = agreement
        self.attempt = attempt
        self.versions = {name: version(name) for name in PACKAGES}
        self._writer: JournalWriter | None = None
        self._metrics: MetricsWriter | None = None
        self._samples: MetricsWriter | None = None
        if config.data.record_samples:
            path = folder.samples(attempt, agreement.rank)
            self._samples = MetricsWriter(path, config.supervisor.heartbeat_s)
        self._expected: dict[int, float] = {}
        journal = read_journal(folder) if agreement.rank == 0 else None
        self.history: History = agreement.from_rank_0(journal.history if journal else History())
        self._refuse_other_data(num_samples)
        claim = self.history.claims[-1].request
        self.claim = self.history.attempts[-1].started.claim
        self.supervisor_pid = next(
            (c.request.pid for c in self.history.claims if c.request.claim == self.claim), claim.pid
        )
        ready = ev.WorkersReady(
            attempt=attempt, world_size=agreement.world_size, num_samples=num_samples, versions=self.versions
        )
        if journal is not None:
            self._writer = JournalWriter(folder.attempt(attempt), ready, journal.counts)
            self._metrics = MetricsWriter(folder.metrics(attempt), config.supervisor.heartbeat_s)
        self.history = apply(self.history, ready)

    def record(self, event: ev.Event) -> None:
        """Make an event part of the history, on disk first."""
        if self._writer is not None:
            self._writer.record(event)
        self.history = apply(self.history, event)

    def resumed(self, checkpoint: str | None, step: int, position: int, first_samples: tuple[int, ...]) -> None:
        """Record where training goes on, and remember what the steps from there gave before, if they are replayed."""
        self.record(
            ev.Resumed(
                attempt=self.attempt, checkpoint=checkpoint, step=step, position=position, first_samples=first_samples
            )
        )
        if self._agreement.rank != 0:
            return
        segments = segments_in_force(self.history)
        order = segments[-1].number if segments else 0
        for attempt in self.history.attempts[:-1]:
            for row in read_rows(self._folder.metrics(attempt.started.attempt)):
                if row.get("order") == order and row["step"] > step:
                    self._expected[row["step"]] = row["loss"]

    def step(self, **row: Any) -> None:
        """Write one step's metrics; the first replayed step that differs from before is an event."""
        if self._metrics is not None:
            self._metrics.row(**row)
        before = self._expected.get(row["step"])
        # `repr`, because a NaN that is a NaN again is no difference.
        if before is not None and repr(before) != repr(row["loss"]):
            self._expected.clear()
            self.record(ev.ReplayDiffers(attempt=self.attempt, step=row["step"], before=before, now=row["loss"]))

    def samples(self, step: int, samples: list[int]) -> None:
        """Write down which samples this rank trained on, if the config asks for it."""
        if self._samples is not None:
            self._samples.row(step=step, samples=samples)

    def sync(self) -> None:
        """Bring all rows of this rank to disk: what a checkpoint contains must be known when it is committed."""
        for writer in (self._metrics, self._samples):
            if writer is not None:
                writer.sync()

    def certify(self, step: int) -> None:
        """Certify the checkpoints that enough healthy steps have followed."""
        for checkpoint in self.history.lineage:
            old_enough = checkpoint.step + self._config.checkpoints.certify_after_steps <= step
            if old_enough and checkpoint.name not in self.history.certified:
                self.record(ev.CheckpointCertified(name=checkpoint.name, step=step))

    def phase(self, name: str | None) -> None:
        """Announce what may take long, or, with None, that it is over."""
        if self._metrics is not None:
            self._metrics.phase(name)

    def is_replaced(self) -> bool:
        """Tell whether a newer supervisor owns the run; only a courtesy, see `journal.claims`."""
        return is_replaced(self._folder, self.claim)

    def close(self) -> None:
        """Bring everything to disk."""
        for writer in (self._metrics, self._samples):
            if writer is not None:
                writer.close()
        if self._writer is not None:
            self._writer.close()

    def _refuse_other_data(self, num_samples: int) -> None:
        earlier = [a.ready.num_samples for a in self.history.attempts if a.ready is not None]
        if earlier and earlier[0] != num_samples:
            raise TrainerError(
                f"the data set has {num_samples} samples, but this run began with {earlier[0]}; "
                "the order of the rest can't be kept: put the old data back, or begin a new run"
            )
