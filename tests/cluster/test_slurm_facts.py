"""What Slurm says, in its own recorded words, and what a supervisor makes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hpc_resume.cluster.base import Interruption
from hpc_resume.cluster.slurm_facts import (
    JobFacts,
    expand_tasks,
    interruption_from_state,
    interruption_of,
    parse_jobs,
    parse_seconds,
)

_TEXT = (Path(__file__).parent / "scontrol_samples.txt").read_text(encoding="utf-8")
SAMPLES = {name: line for name, _, line in (part.partition("\n") for part in _TEXT.split("# ")[2:])}


def facts(name: str) -> JobFacts:
    (found,) = parse_jobs(SAMPLES[name])
    return found


def test_an_array_that_nothing_has_started_of_is_taken_apart() -> None:
    jobs = parse_jobs(SAMPLES["waiting"])
    assert [job.job_id for job in jobs] == ["1_0", "1_1", "1_2", "1_3"]
    assert {(job.state, job.reason, job.waits, job.lives) for job in jobs} == {("PENDING", "JobHeldUser", True, True)}


def test_the_elements_that_run_and_the_rest_of_their_array_are_told_apart() -> None:
    jobs = parse_jobs(SAMPLES["rest"] + SAMPLES["running"])
    assert [(job.job_id, job.state) for job in jobs] == [
        ("2_1", "PENDING"),
        ("2_2", "PENDING"),
        ("2_3", "PENDING"),
        ("2_0", "RUNNING"),
    ]


def test_an_element_that_runs() -> None:
    assert facts("running") == JobFacts(
        job_id="2_0", state="RUNNING", limit_s=1800.0, nodes="n[1-2]", partition="main", exit_code="0:0"
    )
    assert not facts("running").waits
    assert facts("running").lives


def test_an_element_that_was_requeued_waits_and_counts_its_restart() -> None:
    job = facts("requeued")
    assert (job.job_id, job.state, job.reason, job.restarts, job.nodes) == ("2_0", "PENDING", "BeginTime", 1, "")
    assert job.waits


def test_a_job_that_was_told_to_leave_runs_on_and_is_preempted() -> None:
    job = facts("preempted")
    assert (job.job_id, job.state, job.preempted, job.nodes) == ("7", "RUNNING", True, "n[1-4]")
    assert not facts("running").preempted


@pytest.mark.parametrize(("name", "lives"), [("completing", True), ("cancelled", False)])
def test_a_job_is_there_until_its_last_process_is_gone(name: str, lives: bool) -> None:
    job = facts(name)
    assert (job.state, job.lives, job.waits) == (name.upper(), lives, False)
    assert (job.run_s, job.limit_s) == (1.0, 86400.0 + 2 * 3600 + 4 * 60)


def test_a_job_without_a_limit() -> None:
    assert facts("odd").limit_s is None


def test_a_name_that_looks_like_fields_is_taken_for_none() -> None:
    assert "JobState=FAILED" in SAMPLES["odd"]
    job = facts("odd")
    assert (job.job_id, job.state, job.nodes, job.restarts) == ("5", "RUNNING", "n2", 0)


def test_a_site_that_does_not_requeue_and_a_job_without_a_script_are_seen() -> None:
    (job,) = parse_jobs(SAMPLES["running"].replace("Requeue=1", "Requeue=0").replace("BatchFlag=1", "BatchFlag=0"))
    assert not job.may_requeue
    assert facts("running").may_requeue


def test_nodes_that_are_excluded_are_kept() -> None:
    (job,) = parse_jobs(SAMPLES["requeued"].replace("ExcNodeList=(null)", "ExcNodeList=n[1,3]"))
    assert job.excluded == "n[1,3]"


@pytest.mark.parametrize("text", ["", "\n", "No jobs in the system\n"])
def test_where_there_are_no_jobs_there_are_none(text: str) -> None:
    assert parse_jobs(text) == []


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("7", [7]),
        ("0-3", [0, 1, 2, 3]),
        ("0-3%2", [0, 1, 2, 3]),
        ("1,3,7-9%2", [1, 3, 7, 8, 9]),
        ("0-8:4", [0, 4, 8]),
        ("1-119:59,200", [1, 60, 119, 200]),
    ],
)
def test_a_task_list_is_taken_apart(text: str, numbers: list[int]) -> None:
    assert expand_tasks(text) == numbers


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("00:00:00", 0.0),
        ("00:30:00", 1800.0),
        ("30:05", 1805.0),
        ("23:59:59", 86399.0),
        ("1-02:04:00", 93840.0),
        ("365-00:00:00", 31536000.0),
        ("UNLIMITED", None),
        ("Partition_Limit", None),
        ("INVALID", None),
        ("", None),
    ],
)
def test_a_duration_is_read(text: str, seconds: float | None) -> None:
    assert parse_seconds(text) == seconds


RUNS = JobFacts(job_id="2_0", state="RUNNING", restarts=1, run_s=60.0, limit_s=600.0)
ENDS = replace(RUNS, state="COMPLETING")
AGAIN = replace(RUNS, restarts=2)

CASES: dict[str, tuple[JobFacts, tuple[str, ...], tuple[str, bool] | None]] = {
    "it runs": (RUNS, (), None),
    "it runs, and a node is down that Slurm has not acted on": (RUNS, ("n2",), None),
    "it is suspended": (replace(RUNS, state="SUSPENDED"), (), None),
    "its time is over, but it still runs": (replace(RUNS, run_s=700.0), (), None),
    "it is preempted, and has its grace time": (replace(RUNS, preempted=True), (), ("preempted", False)),
    "its grace time is over": (replace(ENDS, preempted=True), (), ("preempted", True)),
    "it was preempted, and is in the queue again": (
        replace(AGAIN, state="PENDING", preempted=True),
        (),
        ("preempted", True),
    ),
    "it is being requeued": (replace(AGAIN, state="COMPLETING"), (), ("preempted", True)),
    "it is in the queue again": (replace(AGAIN, state="PENDING"), (), ("preempted", True)),
    "it runs again, elsewhere": (AGAIN, (), ("preempted", True)),
    "it is being requeued, for a node is down": (replace(AGAIN, state="COMPLETING"), ("n2",), ("node", True)),
    "it ends, for a node is down": (ENDS, ("n2",), ("node", True)),
    "a node is down, and its time is over": (replace(ENDS, run_s=600.0), ("n2",), ("node", True)),
    "it ends, for its time is over": (replace(ENDS, run_s=600.0), (), ("deadline", True)),
    "it ended, for its time is over": (replace(RUNS, state="TIMEOUT", run_s=601.0), (), ("deadline", True)),
    "it ends for a limit that is not its own": (replace(ENDS, reason="TimeLimit"), (), ("deadline", True)),
    "it ends before its time": (ENDS, (), ("cancelled", True)),
    "it ends, and has no limit": (replace(ENDS, limit_s=None, run_s=1e6), (), ("cancelled", True)),
    "it was cancelled": (replace(RUNS, state="CANCELLED"), (), ("cancelled", True)),
    "it is in a state that this version does not know": (replace(RUNS, state="TELEPORTING"), (), None),
    "it was put back by hand before this one started": (replace(RUNS, state="PENDING"), (), None),
}


@pytest.mark.parametrize(("job", "down", "expected"), CASES.values(), ids=CASES)
def test_what_slurm_is_doing_to_a_job(job: JobFacts, down: tuple[str, ...], expected: tuple[str, bool] | None) -> None:
    found = interruption_of(job, 1, down)
    assert (found and (found.cause, found.final)) == expected
    if found is not None:
        assert found.nodes == (down if found.cause == "node" else ())
        assert all(node in found.message for node in found.nodes)


def test_the_first_start_counts_no_restarts() -> None:
    assert interruption_of(facts("running"), 0, ()) is None
    found = interruption_of(facts("requeued"), 0, ())
    assert found == Interruption(cause="preempted", message="Slurm took the job back into its queue", final=True)
    assert interruption_of(facts("requeued"), 1, ()) is None


def test_a_job_told_to_leave_is_not_ended_yet() -> None:
    found = interruption_of(facts("preempted"), 0, ())
    assert found == Interruption(cause="preempted", message="Slurm needs its nodes for another job")


STATES: dict[str, tuple[str, tuple[str, ...], str | None]] = {
    "NODE_FAIL": ("NODE_FAIL", (), "node"),
    "a node is down, and the accounting is silent": ("", ("n2",), "node"),
    "a node is down now, but the accounting knows better": ("TIMEOUT", ("n2",), "deadline"),
    "PREEMPTED": ("PREEMPTED", (), "preempted"),
    "REQUEUED": ("REQUEUED", (), "preempted"),
    "DEADLINE": ("DEADLINE", (), "deadline"),
    "CANCELLED": ("CANCELLED", (), "cancelled"),
    "the supervisor was killed alone": ("FAILED", (), "crash"),
    "OUT_OF_MEMORY": ("OUT_OF_MEMORY", (), "out_of_memory"),
    "it still runs": ("RUNNING", (), None),
    "nobody knows": ("", (), None),
}


@pytest.mark.parametrize(("state", "down", "cause"), STATES.values(), ids=STATES)
def test_what_the_accounting_says_of_an_earlier_start(state: str, down: tuple[str, ...], cause: str | None) -> None:
    found = interruption_from_state(state, down)
    assert (found.cause if found is not None else None) == cause
    if found is not None:
        assert found.final
