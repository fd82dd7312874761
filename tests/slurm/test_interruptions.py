"""What Slurm does to healthy jobs: preemption and the end of their time cost no finished step."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from slurm.cluster import MiniSlurm
from slurm.runs import LIMIT_S, QUIET, SlurmRuns, submit

from hpc_resume.cluster.reports import read_reports
from hpc_resume.journal.metrics import read_rows
from hpc_resume.recovery import events as ev

GRACE_S = 12.0
RUNS = (0, 1)
ENDLESS = {**QUIET, "training__steps": 100_000, "checkpoints": {"interval_steps": 100_000, "certify_after_steps": 5}}

pytestmark = pytest.mark.deepspeed


def last_step(runs: SlurmRuns, attempt: int, index: int) -> int:
    """The last step that an attempt finished."""
    steps = [row["step"] for row in read_rows(runs.run(index).metrics(attempt)) if "step" in row]
    return int(steps[-1])


def assert_no_step_was_lost(runs: SlurmRuns, cause: str, index: int) -> None:
    """Every attempt but the newest saved its last step, and the next one went on from there, in the same order."""
    history = runs.history(index)
    for attempt, following in zip(history.attempts, history.attempts[1:], strict=False):
        assert attempt.ended is not None
        assert attempt.ended.cause == cause
        assert attempt.stop is not None
        assert attempt.stop.checkpoint is not None
        assert attempt.stop.step == last_step(runs, attempt.started.attempt, index)
        assert following.resumed is not None
        assert following.resumed.step == attempt.stop.step
    plans = [decision.plan for decision in history.decisions]
    assert not any(plan.perturb for plan in plans if plan is not None)
    # It counts against nothing: each time it is the first in a row, since there was progress between.
    assert all(decision.used <= 1 for decision in history.decisions)


def seconds_between(runs: SlurmRuns, first: type[ev.Event], second: type[ev.Event], index: int) -> list[float]:
    """How long after each event of one kind the next one of the other kind was recorded."""
    found, since = [], None
    for record in sorted(runs.journal(index).records, key=lambda record: record.time):
        if isinstance(record.event, first):
            since = record.time
        elif isinstance(record.event, second) and since is not None:
            found.append(record.time - since)
            since = None
    return found


def preempt(runs: SlurmRuns, times: int) -> None:
    """Have an urgent job take all nodes while every run is training; that often."""
    for count in range(1, times + 1):
        for index in RUNS:
            runs.wait_for_event(ev.Resumed, count, index)
            begin = runs.events(ev.Resumed, index)[-1].step
            runs.wait_for_step(begin + 5, index)
        urgent = runs.cluster.run(
            *("sbatch", "--parsable", "--partition=urgent", "--nodes=4", "--exclusive", "--output=/dev/null"),
            "--wrap=true",
        ).strip()
        for index in RUNS:
            runs.wait_for_event(ev.ClaimEnded, count, index)
        runs.wait(lambda job=urgent: is_over(runs.cluster, job), "the urgent job has had its nodes")


def is_over(cluster: MiniSlurm, job: str) -> bool:
    return any(each["JobId"] == job and each["JobState"] == "COMPLETED" for each in cluster.jobs())


@pytest.mark.parametrize("times", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_a02_a46_a_preemption_costs_no_finished_step(slurm: MiniSlurm, tmp_path: Path, times: int) -> None:
    # Two runs are hit by each urgent job, each with two DataLoader processes a rank, which Slurm signals as well.
    settings = {**ENDLESS, "data__loader_workers": 2, "sweep": {"seed": [1, 2]}}
    runs = submit(slurm, tmp_path / "preempted", **settings)
    preempt(runs, times)

    for index in RUNS:
        runs.wait_for_event(ev.Resumed, times + 1, index)
        assert runs.causes(index) == ["preempted"] * times
        assert_no_step_was_lost(runs, "preempted", index)
        waits = seconds_between(runs, ev.StopAgreed, ev.ClaimEnded, index)
        assert len(waits) == times
        assert max(waits) < GRACE_S / 2, "the grace time was waited out"
        assert runs.status(index)["state"] in ("running", "starting")


def test_before_its_time_is_over_a_run_saves_and_requeues(slurm: MiniSlurm, tmp_path: Path) -> None:
    # A minute is the shortest limit that Slurm knows.
    settings = {**ENDLESS, "cluster__walltime_min": 1, "supervisor__deadline_margin_s": 40.0}
    runs = submit(slurm, tmp_path / "limited", **settings)
    runs.wait_for_event(ev.Resumed, 2, limit_s=2 * LIMIT_S)

    assert runs.causes() == ["deadline"]
    assert_no_step_was_lost(runs, "deadline", 0)
    job = next(each for each in slurm.jobs() if each["JobId"] == runs.job())
    assert job["Restarts"] == "1"


def test_a07_a_signal_to_one_rank_makes_all_ranks_save_the_same_step(slurm: MiniSlurm, tmp_path: Path) -> None:
    runs = submit(slurm, tmp_path / "signalled", **ENDLESS)
    for count, rank in enumerate((1, 0), start=1):
        runs.wait_for_event(ev.Resumed, count)
        runs.wait_for_step(runs.events(ev.Resumed)[-1].step + 5)
        (report,) = [r for r in read_reports(runs.run(), count) if r.rank == rank]
        os.kill(report.pid, signal.SIGUSR2)
        runs.wait_for_event(ev.ClaimEnded, count)
    runs.wait_for_event(ev.Resumed, 3)

    assert runs.causes() == ["preempted", "preempted"]
    assert_no_step_was_lost(runs, "preempted", 0)
