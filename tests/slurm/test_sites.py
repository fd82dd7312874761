"""Ways in which a site ends jobs that are not those of the ordinary cluster."""

from __future__ import annotations

from pathlib import Path

from slurm.cluster import MiniSlurm
from slurm.runs import submit_scripted

from hpc_resume.recovery import events as ev


def test_a_job_that_slurm_ends_for_good_before_its_time_goes_on_in_a_new_one(slurm: MiniSlurm, tmp_path: Path) -> None:
    runs = submit_scripted(slurm, tmp_path, {"do": "wait", "step": 6})
    runs.wait_for_word("waiting at 6")
    first = runs.job()
    log = runs.run().supervisor_log()
    runs.wait(
        lambda: "the job's time ends in" in log.read_text(encoding="utf-8"), "the supervisor has asked for the time"
    )
    # An administrator's change, which our clock learns of too late.
    slurm.run("scontrol", "update", f"JobId={first}", "EndTime=now")
    runs.wait_for_event(ev.ClaimEnded)
    runs.say("go")
    runs.wait_for_state("finished")

    assert runs.causes()[0] in ("deadline", "preempted")
    assert runs.causes()[-1] == "finished"
    assert runs.events(ev.JobCancelled) == []
    assert runs.job() != first


def test_a_crash_is_a_crash_where_gpus_are_asked_for_by_node(slurm: MiniSlurm, tmp_path: Path) -> None:
    # With this option a second step can't simply be started beside the first.
    boom = {"do": "crash", "step": 4}
    runs = submit_scripted(slurm, tmp_path, boom, cluster__gpus_per_node=None, cluster__sbatch={"gpus-per-node": 2})
    runs.wait_for_state("finished")

    assert runs.causes() == ["crash", "finished"]
