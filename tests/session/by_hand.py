"""Real sessions on real ranks, without a supervisor: what that would record of a run is recorded here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torture.stand_in import SAMPLES, StandInEngine

from hpc_resume.config.cluster_section import ClusterConfig
from hpc_resume.config.schema import CheckpointConfig, RunConfig, SupervisorConfig, TrainingConfig
from hpc_resume.journal.folder import SubmissionFolder, make_private
from hpc_resume.journal.reader import read_journal
from hpc_resume.journal.writer import JournalWriter
from hpc_resume.recovery import Policy, decide
from hpc_resume.recovery import events as ev
from hpc_resume.session import Session


class HandMadeRun:
    """A run of which every rank holds one of these, and calls the same."""

    def __init__(self, parent: Path, name: str, *, steps: int, interval_steps: int) -> None:
        """Open a claim."""
        self._config = RunConfig(
            name=name,
            cluster=ClusterConfig(kind="local", ranks_per_node=dist.get_world_size()),
            training=TrainingConfig(steps=steps, precision="fp32", deepspeed={"zero_optimization": {"stage": 1}}),
            checkpoints=CheckpointConfig(interval_steps=interval_steps, certify_after_steps=1, mode="sync"),
            recovery=Policy(rollback_margin_steps=0),
            supervisor=SupervisorConfig(phase_limit_s=120),
        )
        self.folder = SubmissionFolder(parent / name).run(0)
        self.engine = StandInEngine(self._config, dist.get_rank(), elements=8)
        """That of the newest attempt."""
        self._attempt = 0
        self._claim: JournalWriter | None = None
        if dist.get_rank() == 0:
            for folder in (self.folder.submission.path, self.folder.path, self.folder.journal):
                make_private(folder)
            request = ev.ClaimRequested(
                claim=1, cluster="local", job_id="", restart_count=0, host="n", pid=1, boot_id="b", start_ticks=1
            )
            self._claim = JournalWriter(self.folder.claim(1), request)
            self._claim.record(ev.ClaimOpened(claim=1, committed=()))

    def start(self, **options: Any) -> Session:
        """Start an attempt from where the journal says; return its session, which is still to be resumed."""
        self._attempt += 1
        if self._claim is not None:
            journal = read_journal(self.folder)
            self._claim.saw(journal.counts)
            history = journal.history
            if history.pending is None:
                self._claim.record(ev.Decided(decision=decide(self._config.recovery, history, history.undecided)))
            self._claim.record(ev.AttemptStarted(attempt=self._attempt, claim=1, data_seed=0, host="n"))
        dist.barrier()
        self.engine = StandInEngine(self._config, dist.get_rank(), elements=8)
        return Session(
            folder=self.folder,
            attempt=self._attempt,
            claim=1,
            config=self._config,
            engine=self.engine,
            num_samples=SAMPLES,
            stop_requested=lambda: False,
            **options,
        )

    def ended(self, session: Session, cause: ev.Cause) -> None:
        """End an attempt, for the reason that its supervisor would find."""
        session.close()
        dist.barrier()
        if self._claim is not None:
            self._claim.saw(read_journal(self.folder).counts)
            self._claim.record(ev.AttemptEnded(attempt=self._attempt, cause=cause, message=""))

    def close(self) -> None:
        if self._claim is not None:
            self._claim.close()


def spy_on(owner: Any, name: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Note the arguments of every call of a function from now on."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    function: Callable[..., Any] = getattr(owner, name)

    def noted(*arguments: Any, **options: Any) -> Any:
        calls.append((arguments, options))
        return function(*arguments, **options)

    setattr(owner, name, noted)
    return calls
