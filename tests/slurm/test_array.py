"""A job array of real trainings that fills the cluster: one run's loss spikes, the other one loses a node."""

from __future__ import annotations

from pathlib import Path

import pytest
from slurm.cluster import MiniSlurm
from slurm.runs import LIMIT_S, QUIET, SlurmRuns, incarnations, python_without_gpus, submit
from support.training import Outcome

from hpc_resume.data_order import DataOrder
from hpc_resume.journal.order import segments_in_force
from hpc_resume.recovery import events as ev

RANKS, BATCH, SAMPLES, STEPS, SEED = 4, 8, 200, 160, 7
SPIKE = {"kind": "spike", "step": 60, "lr_factor": 1e5, "duration_steps": 3}
FILLS_ITS_NODES = {
    "cluster__nodes": 2,
    "cluster__ranks_per_node": 2,
    "cluster__cpus_per_rank": 2,
    "cluster__gpus_per_node": 4,
    "training__steps": STEPS,
    "training__gradient_accumulation_steps": 1,
    "training__deepspeed": {"zero_optimization": {"stage": 2}},
    # The quickstart's data, cut short, so that the run sees it more than once.
    "data__paths": ["${python_stdlib:}/*.py"],
    "data__sequence_tokens": 64,
    "data__max_samples": SAMPLES,
    "checkpoints": {"interval_steps": 10, "certify_after_steps": 5},
}

pytestmark = pytest.mark.deepspeed


def lose_a_node(runs: SlurmRuns, *, index: int, which: str) -> str:
    """Kill the batch host or the other node of a run that is training; return its name."""
    runs.wait_for_step(30, index)
    node = runs.nodes(index)[0 if which == "batch host" else -1]
    runs.cluster.kill_node(node)
    assert runs.history(index).finished is None, "the run was faster than the test"
    return node


def stream_of(outcome: Outcome) -> list[int]:
    """All samples of the surviving branch, as really trained on; no epoch lacks one or has one twice."""
    steps = outcome.samples(RANKS)
    assert list(steps) == list(range(1, STEPS + 1))
    stream = [sample for samples in steps.values() for sample in samples]
    assert len(stream) == STEPS * BATCH
    for start in range(0, len(stream), SAMPLES):
        epoch = stream[start : start + SAMPLES]
        assert len(set(epoch)) == len(epoch)
    order = DataOrder(SAMPLES, SEED, segments_in_force(outcome.history))
    assert stream == [order.sample_at(position) for position in range(len(stream))]
    return stream


def assert_perturbed_from(outcome: Outcome, rule: str) -> None:
    """The samples follow the first order up to the rollback, and another one from there on."""
    stream = stream_of(outcome)
    plan = next(d.plan for d in outcome.history.decisions if d.rule == rule)
    assert plan is not None
    assert plan.perturb
    first = [DataOrder(SAMPLES, SEED).sample_at(position) for position in range(len(stream))]
    assert stream[: plan.position] == first[: plan.position]
    assert stream[plan.position :] != first[plan.position :]


@pytest.mark.parametrize("which", ["worker node", pytest.param("batch host", marks=pytest.mark.slow)])
def test_one_run_spikes_and_the_other_loses_a_node_and_both_finish(
    slurm: MiniSlurm, tmp_path: Path, which: str
) -> None:
    python = python_without_gpus(tmp_path)
    sweep = {"faults": [[SPIKE], []]}
    runs = submit(slurm, tmp_path / "array", **FILLS_ITS_NODES, cluster__python=python, sweep=sweep)
    node = lose_a_node(runs, index=1, which=which)

    for index in (0, 1):
        assert runs.wait_for_state("finished", index=index, limit_s=2 * LIMIT_S) == "finished"
        finished = runs.history(index).finished
        assert finished is not None
        assert finished.step == STEPS
    assert runs.causes(0) == ["decided", "finished"]
    assert runs.causes(1) == ["node", "finished"]
    assert runs.events(ev.AttemptEnded, 1)[0].node == node
    assert incarnations(slurm, runs.job(0)) == ["REQUEUED", "COMPLETED"]
    assert incarnations(slurm, runs.job(1)) == ["NODE_FAIL", "COMPLETED"]
    (incident,) = runs.history(0).incidents
    assert 60 <= incident.onset_step <= 61
    assert_perturbed_from(runs.outcome(0), "loss incident")
    assert_perturbed_from(runs.outcome(1), "node lost")


@pytest.mark.parametrize(
    "which",
    [pytest.param("worker node", marks=pytest.mark.full), pytest.param("batch host", marks=pytest.mark.slow)],
)
def test_without_a_new_order_a_lost_node_changes_not_one_bit(slurm: MiniSlurm, tmp_path: Path, which: str) -> None:
    # Two runs that differ in a setting that nothing depends on; one of them is left in peace.
    settings = {
        **FILLS_ITS_NODES,
        **QUIET,
        "cluster__python": python_without_gpus(tmp_path),
        "recovery__perturb_on": ["loss"],
        "sweep": {"recovery.save_budget": [5, 6]},
    }
    runs = submit(slurm, tmp_path / "pair", **settings)
    lose_a_node(runs, index=1, which=which)

    for index in (0, 1):
        runs.wait_for_state("finished", index=index, limit_s=2 * LIMIT_S)
    assert runs.causes(0) == ["finished"]
    assert runs.causes(1) == ["node", "finished"]
    undisturbed, disturbed = runs.outcome(0), runs.outcome(1)
    assert stream_of(disturbed) == stream_of(undisturbed)
    assert disturbed.losses() == undisturbed.losses()
    assert disturbed.history.finished is not None
    assert undisturbed.history.finished is not None
    assert disturbed.history.finished.weights_digest == undisturbed.history.finished.weights_digest
    assert disturbed.history.replay_differences == ()
