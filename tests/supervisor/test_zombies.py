"""A node that was cut off comes back after another supervisor took over: it can do no harm, whatever it writes."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from supervisor.harness import ScriptedRun, end_of, marked_processes, wait_until

from hpc_resume.journal.writer import JournalWriter
from hpc_resume.recovery import events as ev

Make = Callable[..., ScriptedRun]


@dataclass
class CutOff:
    """A supervisor with its ranks, frozen while rank 0 is about to commit a checkpoint."""

    run: ScriptedRun
    supervisor: subprocess.Popen[str]
    pids: list[int]

    def freeze(self) -> None:
        for pid in self.pids:
            os.kill(pid, signal.SIGSTOP)

    def commit_late(self) -> str:
        """Let rank 0 alone run, until it has committed; return the checkpoint's name."""
        (rank,) = self.run.ranks(1)
        self.run.say("go on saving")
        os.kill(rank["pid"], signal.SIGCONT)
        attempt = self.run.folder.attempt(1)
        wait_until(lambda: b"step-000000008" in attempt.read_bytes(), "the late commit is recorded")
        (manifest,) = self.run.folder.checkpoints.glob("step-000000008*/manifest.json")
        return manifest.parent.name

    def come_back(self) -> tuple[int, str]:
        for pid in self.pids:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                continue
        # At once: long before it could take its ranks for hung.
        code, _, errors = end_of(self.supervisor, limit_s=10)
        return code, errors


@pytest.fixture
def cut_off(scripted_run: Make) -> Callable[..., CutOff]:
    def make(*actions: dict[str, object], **settings: object) -> CutOff:
        run = scripted_run({"do": "save_stalls", "step": 8}, *actions, **settings)
        supervisor = run.start()
        run.wait_for_word("saving")
        zombie = CutOff(run, supervisor, marked_processes(run.mark))
        zombie.freeze()
        return zombie

    return make


@pytest.mark.parametrize("perturb_on", [("loss", "node"), ("loss",)], ids=["other branch", "same branch"])
def test_what_a_zombie_commits_late_is_void_for_ever(cut_off: Callable[..., CutOff], perturb_on: tuple[str]) -> None:
    zombie = cut_off({"do": "wait", "step": 8, "attempt": 2}, policy={"perturb_on": perturb_on})
    run = zombie.run
    second = run.start(dead=[1], out_of_reach=True)
    run.wait_for_word("waiting at 8")
    name = zombie.commit_late()
    journal = run.journal
    assert name not in journal.history.known
    assert name in [r.event.checkpoint.name for r in journal.late if isinstance(r.event, ev.CheckpointCommitted)]
    assert name not in [c.name for c in journal.history.lineage]
    assert zombie.come_back()[0] == 3
    (own,) = run.ranks(2)
    os.kill(own["pid"], signal.SIGKILL)
    assert end_of(second)[0] == 75
    assert run.supervise() == 0
    assert name not in [a.resumed.checkpoint for a in run.history.attempts if a.resumed]
    assert name not in [c.name for c in run.history.lineage]
    assert (run.folder.checkpoints / f"quarantined.{name}").is_dir()
    assert "void" in run.history.set_aside[name]
    run.check(cut_off=True)


def test_a_zombie_whose_run_was_finished_by_another_leaves_without_a_trace(cut_off: Callable[..., CutOff]) -> None:
    zombie = cut_off()
    run = zombie.run
    assert run.supervise(dead=[1], out_of_reach=True) == 0
    before = (run.history, run.folder.claim(1).read_bytes(), sorted(run.folder.checkpoints.iterdir()))
    code, errors = zombie.come_back()
    assert code == 3
    assert "error: " in errors
    assert "a newer supervisor owns this run" in errors
    assert (run.history, run.folder.claim(1).read_bytes(), sorted(run.folder.checkpoints.iterdir())) == before
    run.check(cut_off=True)


def test_a_zombie_that_was_frozen_between_two_records_changes_nothing_by_writing_the_second(
    cut_off: Callable[..., CutOff],
) -> None:
    zombie = cut_off({"do": "wait", "step": 8, "attempt": 2})
    run = zombie.run
    second = run.start(dead=[1], out_of_reach=True)
    run.wait_for_word("waiting at 8")
    before = run.history
    # Only the first supervisor's ranks are gone when it comes back: it would record a crash and decide about it.
    for report in run.ranks(1):
        os.kill(report["pid"], signal.SIGKILL)
    assert zombie.come_back()[0] == 3
    assert run.history == before
    run.say("go")
    assert end_of(second)[0] == 0
    run.check(cut_off=True)


def test_what_is_left_of_a_lost_attempt_and_can_be_reached_is_ended_before_anything_new_starts(
    cut_off: Callable[..., CutOff],
) -> None:
    zombie = cut_off()
    run = zombie.run
    assert run.supervise(dead=[1]) == 0
    assert zombie.come_back()[0] == 3
    run.check()


def write_as_claim_1(run: ScriptedRun, attempt: int) -> str:
    """Write what rank 0 of an attempt that a zombie started writes; return the checkpoint that it tells of."""
    checkpoint = ev.Checkpoint(name="step-000000011.s000099", step=11, position=88, branch=0, save_number=99)
    ready = ev.WorkersReady(attempt=attempt, world_size=1, num_samples=1000, claim=1)
    writer = JournalWriter(run.folder.attempt(attempt), ready, {"claim-0001": 4})
    writer.record(ev.CheckpointCommitted(attempt=attempt, checkpoint=checkpoint))
    writer.close()
    return checkpoint.name


def test_what_the_ranks_of_a_zombie_write_is_never_taken_for_the_newer_claims(scripted_run: Make) -> None:
    run = scripted_run({"do": "node_lost", "step": 5})
    assert run.supervise() == -9
    assert run.supervise(kill=["before", 10]) == -9
    name = write_as_claim_1(run, 2)
    assert run.supervise() == 0
    assert [a.started.attempt for a in run.history.attempts] == [1, 3]
    assert name not in run.history.known
    assert name in [r.event.checkpoint.name for r in run.journal.late if isinstance(r.event, ev.CheckpointCommitted)]
    run.check()


def test_a_zombie_that_takes_the_number_of_an_attempt_costs_that_attempt_and_no_more(scripted_run: Make) -> None:
    run = scripted_run({"do": "node_lost", "step": 5}, {"do": "start_late", "step": 0, "attempt": 2})
    assert run.supervise() == -9
    second = run.start()
    run.wait_for_word("starting")
    name = write_as_claim_1(run, 2)
    run.say("begin")
    assert end_of(second)[0] == 75
    assert run.supervise() == 0
    assert [a.ended.cause for a in run.history.attempts if a.ended] == ["node", "crash", "finished"]
    assert name not in run.history.known
    run.check()


def test_a_rank_of_a_claim_that_was_replaced_leaves_before_it_writes_anything(scripted_run: Make) -> None:
    run = scripted_run({"do": "node_lost", "step": 5}, {"do": "wait", "step": 8, "attempt": 2})
    assert run.supervise() == -9
    second = run.start()
    run.wait_for_word("waiting at 8")
    before = run.ranks(2)
    code, _, errors = end_of(run.start_command(["-m", "hpc_resume.worker", str(run.folder.path), "2", "1"]))
    assert code == 1
    assert "RunBusyError" in errors
    assert "a newer supervisor owns this run; this rank of claim 1 leaves" in errors
    assert run.ranks(2) == before
    run.say("go")
    assert end_of(second)[0] == 0
    run.check()
