"""The name of a Slurm cluster is the same inside of its jobs and outside, or all of them would be out of reach."""

from __future__ import annotations

from pathlib import Path

from slurm.cluster import MiniSlurm
from slurm.runs import submit_scripted

from hpc_resume.journal.reader import read_operator
from hpc_resume.recovery import events as ev


def test_a_job_and_who_sent_it_call_the_cluster_by_one_name(slurm: MiniSlurm, tmp_path: Path) -> None:
    runs = submit_scripted(slurm, tmp_path, {"do": "wait", "step": 6})
    runs.wait_for_event(ev.ClaimRequested)
    outcomes = [r.event for r in read_operator(runs.folder) if isinstance(r.event, ev.OperatorOutcome)]
    assert {event.slurm_cluster for event in (*runs.events(ev.ClaimRequested), *outcomes)} == {"mini"}
    runs.wait_for_state("starting", "running")
    runs.command("cancel", str(runs.folder.path))
    runs.wait_for_state("cancelled")
