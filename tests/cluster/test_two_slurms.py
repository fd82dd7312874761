"""Two Slurm clusters on one file system: the number of a job in one is that of another job in the other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.stand_in_slurm import STALLED, StandInSlurm, job_line

from hpc_resume.cluster.liveness import JobBook, liveness
from hpc_resume.cluster.local_allocation import LocalAllocation
from hpc_resume.cluster.slurm_allocation import SlurmAllocation
from hpc_resume.cluster.slurm_commands import SilentError
from hpc_resume.config.cluster_section import ClusterConfig
from hpc_resume.recovery.events import ClaimRequested

NAME = "ClusterName             = here\n"


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandInSlurm:
    """Programs that answer in the place of the Slurm `here`."""
    return StandInSlurm(tmp_path / "bin", monkeypatch)


@pytest.fixture
def there() -> ClaimRequested:
    """The supervisor of job 7 of another Slurm."""
    me = LocalAllocation().request(1)
    return replace(me, cluster="slurm", job_id="7", host="n3", boot_id="there", machine_id="x", slurm_cluster="there")


@pytest.fixture
def me(slurm: StandInSlurm, monkeypatch: pytest.MonkeyPatch) -> SlurmAllocation:
    """Job 7 of this Slurm, started for the second time."""
    for name in ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)
    job = {"JOB_ID": "7", "RESTART_COUNT": "1", "JOB_NODELIST": "n1", "CLUSTER_NAME": "here"}
    for name, value in job.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    slurm.answers("scontrol", "n1\n")
    found = SlurmAllocation(ClusterConfig(kind="slurm"))
    slurm.answers("scontrol", NAME + job_line("7", "RUNNING", Restarts=1))
    slurm.answers("sacct", "7|RUNNING\n")
    slurm.answers("sinfo")
    return found


@pytest.mark.parametrize("jobs", ["", job_line("7", "CANCELLED"), job_line("7", "RUNNING")])
def test_a_supervisor_in_another_slurm_may_live_whatever_this_one_says(
    slurm: StandInSlurm, there: ClaimRequested, jobs: str
) -> None:
    slurm.answers("scontrol", NAME + jobs)
    slurm.answers("sacct", "7|COMPLETED\n")
    assert liveness(there) == "unknown"
    assert slurm.asked("scontrol") == ["show config"]


@pytest.mark.parametrize("name", ["here", "Here", ""])
def test_a_supervisor_in_this_slurm_or_in_one_without_a_name_is_asked_for(
    slurm: StandInSlurm, there: ClaimRequested, name: str
) -> None:
    slurm.answers("scontrol", NAME + job_line("7", "RUNNING"))
    assert liveness(replace(there, slurm_cluster=name)) == "alive"
    slurm.answers("scontrol", NAME + job_line("7", "CANCELLED"))
    assert liveness(replace(there, slurm_cluster=name)) == "dead"


def test_a_slurm_that_says_no_name_is_asked_as_before(slurm: StandInSlurm, there: ClaimRequested) -> None:
    slurm.answers("scontrol", job_line("7", "CANCELLED"))
    assert liveness(there) == "dead"


def test_while_slurm_does_not_say_who_it_is_nobody_is_taken_for_dead(
    slurm: StandInSlurm, there: ClaimRequested
) -> None:
    slurm.refuses("scontrol", STALLED)
    slurm.answers("sacct", "7|COMPLETED\n")
    assert liveness(there) == "unknown"


def test_the_name_is_asked_for_once_also_of_a_silent_slurm(slurm: StandInSlurm) -> None:
    slurm.answers("scontrol", NAME)
    book = JobBook()
    assert [book.is_elsewhere(name) for name in ("", "here", "there")] == [False, False, True]
    assert slurm.asked("scontrol") == ["show config"]
    slurm.refuses("scontrol", STALLED)
    book = JobBook()
    assert not book.is_elsewhere("")
    for _ in range(2):
        with pytest.raises(SilentError):
            book.is_elsewhere("here")
    assert slurm.asked("scontrol") == ["show config"] * 2


def test_a_supervisor_says_in_which_slurm_it_is(me: SlurmAllocation, monkeypatch: pytest.MonkeyPatch) -> None:
    assert me.request(1).slurm_cluster == "here"
    monkeypatch.delenv("SLURM_CLUSTER_NAME")
    assert me.request(1).slurm_cluster == ""


def test_an_equal_number_in_another_slurm_is_no_earlier_start_of_this_job(
    me: SlurmAllocation, there: ClaimRequested
) -> None:
    assert me.liveness(there) == "unknown"
    assert me.liveness(replace(there, slurm_cluster="here")) == "dead"
    assert me.liveness(replace(there, slurm_cluster="")) == "dead"


def test_this_slurm_does_not_know_why_a_supervisor_in_another_one_vanished(
    me: SlurmAllocation, slurm: StandInSlurm, there: ClaimRequested
) -> None:
    slurm.answers("sacct", "CANCELLED by 1000\n")
    assert me.why_lost(there, ("n1",)) is None
    found = me.why_lost(replace(there, slurm_cluster="here"), ("n1",))
    assert found is not None
    assert found.cause == "cancelled"
