"""What rank 0 remembers over attempts: which checkpoints proved good, and what replayed steps gave before."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from hpc_resume.config.schema import CheckpointConfig, RunConfig
from hpc_resume.journal.folder import RunFolder
from hpc_resume.journal.reader import read_journal
from hpc_resume.journal.writer import JournalWriter
from hpc_resume.recovery import Decision
from hpc_resume.recovery import events as ev
from hpc_resume.recovery.decisions import Plan
from hpc_resume.session.recorder import Recorder

T = TypeVar("T")
CERTIFY_AFTER = 6


class OnlyRank:
    """An agreement of one rank with itself."""

    rank = 0
    world_size = 1

    def from_rank_0(self, value: T) -> T:
        return value


class Run:
    """The journal of a run, attempt by attempt, all in one claim."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        folder.journal.mkdir(parents=True)
        request = ev.ClaimRequested(
            claim=1, cluster="local", job_id="", restart_count=0, host="n", pid=1, boot_id="b", start_ticks=1
        )
        self._claim = JournalWriter(folder.claim(1), request)
        self._claim.record(ev.ClaimOpened(claim=1, committed=()))
        self._decisions = 0
        self._attempts = 0
        self.open: list[Recorder] = []

    def start(self, plan: Plan | None = None) -> Recorder:
        """Start an attempt that goes on from where `plan` says; None starts at the beginning."""
        self._claim.saw(read_journal(self.folder).counts)
        plan = plan or Plan(checkpoint=None, step=0, position=0, branch=0)
        self._decisions += 1
        self._attempts += 1
        decision = Decision(number=self._decisions, action="launch", rule="crash", reason="", plan=plan)
        self._claim.record(ev.Decided(decision=decision))
        self._claim.record(ev.AttemptStarted(attempt=self._attempts, claim=1, data_seed=0, host="n"))
        checkpoints = CheckpointConfig(certify_after_steps=CERTIFY_AFTER)
        agreement: Any = OnlyRank()
        recorder = Recorder(self.folder, self._attempts, 1, RunConfig(checkpoints=checkpoints), agreement, 100, "cpu")
        self.open.append(recorder)
        recorder.resumed(plan.checkpoint, plan.step, plan.position, ())
        return recorder

    def close(self) -> None:
        for recorder in self.open:
            recorder.close()
        self._claim.close()


def checkpoint_at(step: int, branch: int = 0) -> ev.Checkpoint:
    return ev.Checkpoint(name=f"at-{step}", step=step, position=step, branch=branch, save_number=step)


def going_on_at(step: int, *, perturb: bool = False, branch: int = 0) -> Plan:
    return Plan(checkpoint=f"at-{step}", step=step, position=step, branch=branch, perturb=perturb)


def save(recorder: Recorder, step: int) -> None:
    event = ev.CheckpointCommitted(attempt=recorder.attempt, checkpoint=checkpoint_at(step))
    recorder.committed(event, healthy_steps=recorder.healthy_steps)


def train(recorder: Recorder, first: int, last: int, loss: Callable[[int], float], order: int = 0) -> None:
    for step in range(first, last + 1):
        recorder.step(step=step, order=order, loss=loss(step))
    recorder.sync()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    run = Run(RunFolder(tmp_path / "submission" / "run-0000"))
    yield run
    run.close()


def certified(run: Run) -> list[tuple[str, int]]:
    records = read_journal(run.folder).records
    return [(r.event.name, r.event.step) for r in records if isinstance(r.event, ev.CheckpointCertified)]


def test_a_checkpoint_is_certified_once_when_enough_healthy_steps_have_followed(run: Run) -> None:
    recorder = run.start()
    for step in range(1, 20):
        recorder.certify(step)
        if step in (4, 8):
            save(recorder, step)
    assert certified(run) == [("at-4", 4 + CERTIFY_AFTER), ("at-8", 8 + CERTIFY_AFTER)]
    assert recorder.history.certified == {"at-4", "at-8"}


def test_steps_that_were_not_healthy_do_not_count(run: Run) -> None:
    recorder = run.start()
    save(recorder, 4)
    for step in range(5, 30, 2):  # Every other step was skipped, or part of a spike.
        recorder.certify(step)
    assert certified(run) == [("at-4", 5 + 2 * (CERTIFY_AFTER - 1))]


def test_after_a_resume_the_steps_up_to_the_newer_checkpoint_count_and_no_others(run: Run) -> None:
    first = run.start()
    save(first, 4)
    for step in range(5, 9):
        first.certify(step)
    save(first, 8)
    first.certify(9)  # One short of what the first checkpoint needs; this step is trained again.
    second = run.start(going_on_at(8))
    second.certify(9)
    assert certified(run) == []
    for step in range(10, 20):
        second.certify(step)
    assert certified(run) == [("at-4", 10), ("at-8", 14)]


def test_what_is_certified_already_is_not_certified_again(run: Run) -> None:
    first = run.start()
    save(first, 4)
    for step in range(5, 12):
        first.certify(step)
    save(first, 11)
    second = run.start(going_on_at(11))
    for step in range(12, 30):
        second.certify(step)
    assert certified(run) == [("at-4", 10), ("at-11", 17)]


def test_a_checkpoint_of_an_abandoned_branch_is_never_certified(run: Run) -> None:
    first = run.start()
    save(first, 4)
    save(first, 8)
    second = run.start(going_on_at(4, branch=1, perturb=True))
    for step in range(5, 30):
        second.certify(step)
    assert certified(run) == [("at-4", 10)]


def differences(run: Run) -> list[tuple[int, float, float]]:
    return [(e.step, e.before, e.now) for e in read_journal(run.folder).history.replay_differences]


def test_replayed_steps_are_compared_with_the_newest_that_had_the_same_order(run: Run) -> None:
    first = run.start()
    save(first, 4)
    train(first, 5, 20, lambda step: step + 0.5)
    second = run.start(going_on_at(4))
    train(second, 5, 6, float)
    assert differences(run) == [(5, 5.5, 5.0)]
    third = run.start(going_on_at(4))
    # Steps 5 and 6 as the second attempt did them, those after as the first one did.
    train(third, 5, 19, lambda step: step + (0.5 if step > 6 else 0.0))
    assert len(differences(run)) == 1
    train(third, 20, 20, float)
    assert differences(run)[1:] == [(20, 20.5, 20.0)]


def test_steps_in_another_order_are_not_compared_and_nothing_before_them_is_read(run: Run) -> None:
    first = run.start()
    save(first, 4)
    train(first, 5, 20, float)
    second = run.start(going_on_at(4, branch=1, perturb=True))
    train(second, 5, 8, lambda step: step + 0.5, order=2)
    # As if from somewhere else: that it is of the same order must not matter, so far back it can't be.
    row = {"step": 9, "order": 2, "loss": 7.0}
    run.folder.metrics(1).write_text(f"{json.dumps(row)}\n{json.dumps({**row, 'order': 0})}\n", encoding="utf-8")
    third = run.start(replace(going_on_at(4, branch=1)))
    train(third, 5, 12, lambda step: step + 0.5, order=2)
    assert differences(run) == []
