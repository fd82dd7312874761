"""Ranks and supervisors that outlive their job, and sites that let no job be requeued, on a real cluster."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from slurm.cluster import MiniSlurm
from slurm.runs import SlurmRuns, hpc_resume, incarnations, scripted_config, submit_scripted

from hpc_resume.cli.submission import find_target
from hpc_resume.cluster.processes import is_running
from hpc_resume.cluster.slurm_allocation import SlurmAllocation
from hpc_resume.config.schema import ClusterConfig
from hpc_resume.recovery import events as ev

NO_REQUEUE = """
function slurm_job_submit(job, partitions, uid)
   if job.name == "forbidden" then job.requeue = 0 end
   return slurm.SUCCESS
end
function slurm_job_modify(wanted, job, partitions, uid)
   if job.name == "forbidden" and wanted.requeue ~= slurm.NO_VAL16 then return slurm.ERROR end
   return slurm.SUCCESS
end
"""


def jobs(cluster: MiniSlurm) -> dict[str, dict[str, str]]:
    """What Slurm says of each job, by its number."""
    return {job["JobId"]: job for job in cluster.jobs()}


def rank_0_runs(runs: SlurmRuns) -> bool:
    """Whether rank 0 of the first attempt is still there."""
    rank = json.loads(runs.run().rank_report(1, 0).read_text())
    return is_running(rank["pid"], rank["start_ticks"])


def supervisor_runs(runs: SlurmRuns) -> bool:
    """Whether the first supervisor is still there."""
    owner = runs.events(ev.ClaimRequested)[0]
    return is_running(owner.pid, owner.start_ticks)


def test_a10_what_goes_on_on_a_node_that_slurm_takes_for_dead_does_no_harm_to_the_new_attempt(
    slurm: MiniSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = submit_scripted(
        slurm,
        tmp_path,
        {"do": "save_stalls", "step": 6, "attempt": 1},
        {"do": "wait", "step": 9, "attempt": 2},
    )
    runs.wait_for_word("saving")
    number, host, owner = runs.job(), runs.nodes()[0], runs.events(ev.ClaimRequested)[0]
    slurm.kill_slurmd(host)
    # Cut off, it would not hear what Slurm has made of its job until it is back.
    os.kill(owner.pid, signal.SIGSTOP)
    runs.wait_for_word("waiting at 9")
    assert host not in runs.nodes()
    assert rank_0_runs(runs)
    assert supervisor_runs(runs)

    # Now both come back: rank 0 commits the save that it was at and goes for the next, its supervisor for a requeue.
    runs.say("go on saving")
    runs.wait(lambda: not rank_0_runs(runs), "the old rank 0 has left")
    os.kill(owner.pid, signal.SIGCONT)
    runs.wait(lambda: not supervisor_runs(runs), "the old supervisor has left")
    assert "RunBusyError: a newer supervisor owns this run" in runs.run().log(1, 0).read_text()
    assert "a newer supervisor owns this run; claim 1 leaves" in runs.run().supervisor_log().read_text()
    late = [r.event.checkpoint.name for r in runs.journal().late if isinstance(r.event, ev.CheckpointCommitted)]
    assert [name.partition(".")[0] for name in late] == ["step-000000006"]
    assert not runs.history().known.keys() & set(late)
    # And if it had not seen the newer claim, Slurm's count of restarts would have kept it from a requeue.
    old_environment = {"SLURM_JOB_ID": number, "SLURM_JOB_NODELIST": "n1,n2", "SLURMD_NODENAME": host}
    for name, value in {**slurm.environment(), **old_environment}.items():
        monkeypatch.setenv(name, value)
    SlurmAllocation(ClusterConfig(nodes=2)).requeue()
    job = jobs(slurm)[number]
    assert (job["JobState"], job["Restarts"]) == ("RUNNING", "1")

    slurm.revive_node(host)
    runs.say("go")
    runs.wait(lambda: jobs(slurm)[number]["JobState"] == "COMPLETED", "the job is complete")
    assert runs.status()["state"] == "finished"
    assert runs.causes() == ["node", "finished"]
    assert runs.job() == number
    assert incarnations(slurm, number) == ["NODE_FAIL", "COMPLETED"]
    resumed = [event.checkpoint.partition(".")[0] for event in runs.events(ev.Resumed)[1:]]
    assert resumed == ["step-000000004"]


@pytest.mark.slow
def test_a10_a_supervisor_on_a_node_that_slurm_takes_for_dead_hears_of_it_and_leaves(
    slurm: MiniSlurm, tmp_path: Path
) -> None:
    runs = submit_scripted(
        slurm,
        tmp_path,
        {"do": "wait", "step": 5, "attempt": 1},
        {"do": "save_stalls", "step": 8, "attempt": 2},
    )
    runs.wait_for_word("waiting at 5")
    number, host = runs.job(), runs.nodes()[0]
    slurm.kill_slurmd(host)
    runs.wait(lambda: not supervisor_runs(runs), "the old supervisor has left")
    (ended,) = runs.events(ev.AttemptEnded)
    assert (ended.cause, ended.node) == ("node", host)
    runs.wait_for_word("saving")
    assert rank_0_runs(runs)
    runs.say("go")
    runs.wait(lambda: not rank_0_runs(runs), "the old rank 0 has left")
    assert "RunBusyError: a newer supervisor owns this run" in runs.run().log(1, 0).read_text()
    runs.say("go on saving")
    runs.wait(lambda: jobs(slurm)[number]["JobState"] == "COMPLETED", "the job is complete")
    assert jobs(slurm)[number]["Restarts"] == "1"
    assert runs.causes() == ["node", "finished"]


def test_a24_where_jobs_are_not_requeued_unless_asked_for_ours_are_and_where_that_is_forbidden_a_new_job_goes_on(
    start_slurm: Callable[..., MiniSlurm], tmp_path: Path
) -> None:
    cluster = start_slurm(
        accounting=False,
        settings={"JobRequeue": "0", "JobSubmitPlugins": "lua"},
        files={"job_submit.lua": NO_REQUEUE},
    )
    allowed, remark = submit_with_incident(cluster, tmp_path / "allowed", name="allowed")
    assert remark == ""
    forbidden, remark = submit_with_incident(cluster, tmp_path / "forbidden", name="forbidden")
    first = jobs(cluster)
    assert {job["JobName"]: job["Requeue"] for job in first.values()} == {"allowed": "1", "forbidden": "0"}
    assert len(remark.splitlines()) == 1
    assert "this site does not let jobs be requeued" in remark
    assert "each restart will be a new job" in remark

    for runs in (allowed, forbidden):
        runs.wait(lambda runs=runs: runs.history().stop is not None, "the run has ended")
        cluster.wait_for(lambda: cluster.run("squeue", "--noheader") == "", "all jobs are over")
        assert (runs.status()["state"], runs.causes()) == ("finished", ["decided", "finished"])
    known = jobs(cluster)
    (new,) = known.keys() - first.keys()
    assert forbidden.job() == new
    assert [event.job_id for event in forbidden.events(ev.OperatorOutcome)] == [forbidden_job(first), new]
    seen = {(job["JobName"], job["JobState"], job["Restarts"]) for job in known.values()}
    assert seen == {("allowed", "COMPLETED", "1"), ("forbidden", "FAILED", "0"), ("forbidden", "COMPLETED", "0")}


def submit_with_incident(cluster: MiniSlurm, folder: Path, **changes: Any) -> tuple[SlurmRuns, str]:
    """Submit a run that has to start again once; return what `submit` complains of, too."""
    config = scripted_config(folder, {"do": "loss", "step": 6, "onset": 5}, **changes)
    errors = hpc_resume(cluster, "submit", str(config)).stderr
    return SlurmRuns(cluster, find_target(config)[0], config, folder), errors


def forbidden_job(known: dict[str, dict[str, str]]) -> str:
    return next(number for number, job in known.items() if job["JobName"] == "forbidden")
