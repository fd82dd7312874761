"""Runs that take what nodes there are, `cluster.nodes: 2-4`, and keep their batch on fewer or more of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from slurm.cluster import MiniSlurm
from slurm.runs import SlurmRuns, incarnations, scripted_config, submit_scripted

from hpc_resume.journal.folder import SubmissionFolder
from hpc_resume.recovery import events as ev

# With GPUs, of which a job has to get the same number on each node, however many nodes it gets.
TWO_TO_FOUR = {"cluster__nodes": "2-4", "cluster__gpus_per_node": 2}


def waits(*steps: int) -> list[dict[str, Any]]:
    """Wait at one step of each attempt, the first one first."""
    return [{"do": "wait", "step": step, "attempt": attempt} for attempt, step in enumerate(steps, start=1)]


def drain(cluster: MiniSlurm, *names: str) -> None:
    """Give out no more work to these nodes, as an administrator does before a repair."""
    cluster.run("scontrol", "update", f"NodeName={','.join(names)}", "State=DRAIN", "Reason=test")


def put_back(runs: SlurmRuns) -> None:
    """Have the ranks save and leave, and the job go back to the queue."""
    runs.cluster.run("scancel", "--signal=USR2", runs.job())


def sizes(runs: SlurmRuns) -> list[tuple[int, int]]:
    """The nodes that each attempt used, and the ranks that met there."""
    nodes = [len(event.nodes) for event in runs.events(ev.AttemptStarted)]
    return list(zip(nodes, [event.world_size for event in runs.events(ev.WorkersReady)], strict=True))


def given(cluster: MiniSlurm, job: str) -> list[str]:
    """How many nodes Slurm gave to each start of a job."""
    return cluster.run("sacct", "-n", "-P", "-X", "--duplicates", "-j", job, "-o", "NNodes").split()


def test_a_run_takes_what_is_free_at_each_start_and_trains_on_as_many_as_keep_its_batch(
    slurm: MiniSlurm, tmp_path: Path
) -> None:
    drain(slurm, "n2", "n3")
    ranks = {"cluster__ranks_per_node": 2, "cluster__cpus_per_rank": 2}
    runs = submit_scripted(slurm, tmp_path, *waits(3, 5), **ranks, **TWO_TO_FOUR)
    runs.wait_for_word("waiting at 3")
    job = runs.job()
    slurm.run("scontrol", "update", "NodeName=n2,n3", "State=RESUME")
    put_back(runs)
    runs.wait_for_word("waiting at 5")
    # Three are left, on which four shares can't be equal.
    drain(slurm, "n4")
    put_back(runs)
    runs.wait_for_state("finished")

    assert sizes(runs) == [(2, 4), (4, 8), (2, 4)]
    runs.wait(lambda: given(slurm, job) == ["2", "4", "3"], "the accounting knows what Slurm gave")
    assert [event.step for event in runs.events(ev.Resumed)] == [0, 3, 5]
    assert runs.causes() == ["preempted", "preempted", "finished"]


@pytest.mark.slow
def test_a_run_that_loses_a_node_goes_on_with_those_that_are_left(slurm: MiniSlurm, tmp_path: Path) -> None:
    runs = submit_scripted(slurm, tmp_path, *waits(5), training__gradient_accumulation_steps=3, **TWO_TO_FOUR)
    runs.wait_for_word("waiting at 5")
    job = runs.job()
    slurm.kill_node("n3")
    runs.wait_for_state("finished")

    assert sizes(runs) == [(4, 4), (3, 3)]
    assert runs.causes() == ["node", "finished"]
    assert runs.events(ev.AttemptStarted)[1].nodes == ("n1", "n2", "n4")
    first, second = (event.step for event in runs.events(ev.Resumed))
    assert first == 0
    assert second >= 4, "a rank that is left may still have saved where it was"
    assert incarnations(slurm, job) == ["NODE_FAIL", "COMPLETED"]


@pytest.mark.slow
def test_a_run_that_crashes_twice_on_a_node_goes_on_without_it(slurm: MiniSlurm, tmp_path: Path) -> None:
    # All nodes are in use: a fixed number of them could not do without one.
    crash = {"do": "crash", "step": 5, "times": 2}
    runs = submit_scripted(slurm, tmp_path, crash, training__gradient_accumulation_steps=3, **TWO_TO_FOUR)
    runs.wait_for_state("finished")
    assert sizes(runs) == [(4, 4), (4, 4), (3, 3)]
    assert [decision.rule for decision in runs.history().decisions[1:3]] == ["crash", "same crash, other node"]
    assert runs.events(ev.AttemptStarted)[2].nodes == ("n2", "n3", "n4")


@pytest.mark.slow
def test_a_script_of_ones_own_can_ask_for_a_range_as_well(slurm: MiniSlurm, tmp_path: Path) -> None:
    config = scripted_config(tmp_path, *waits(3), cluster__ranks_per_node=2, **TWO_TO_FOUR)
    script = tmp_path / "my_run.sbatch"
    options = ("--nodes=2-4", "--mincpus=2", "--gres=gpu:2", "--requeue", f"--output={tmp_path}/out")
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in options)]
    script.write_text("\n".join([*lines, f"exec {sys.executable} -m hpc_resume run {config}", ""]), encoding="utf-8")
    slurm.run("sbatch", str(script))
    runs = SlurmRuns(slurm, SubmissionFolder(tmp_path / "runs" / "test"), config, tmp_path)
    runs.wait_for_word("waiting at 3")
    drain(slurm, "n2", "n3")
    put_back(runs)
    runs.wait_for_state("finished")
    assert sizes(runs) == [(4, 8), (2, 4)]
