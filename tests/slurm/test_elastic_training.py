"""A real training that goes on with fewer nodes, and with more again, through DeepSpeed's universal checkpoint."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from slurm.cluster import MiniSlurm
from slurm.runs import QUIET, SlurmRuns, submit
from slurm.test_node_ranges import drain, put_back, sizes
from support.training import SAMPLES

from hpc_resume.journal.metrics import read_rows
from hpc_resume.recovery import events as ev

pytestmark = [pytest.mark.deepspeed, pytest.mark.slow]

STEPS = 500
"""So many that an attempt does not reach the end before the test has interrupted it."""
BATCH = 12
TOLERANCE = 1e-5
"""Relative, of a loss in fp32: with another number of ranks gradients are added up in another order, and each step
builds on the last one's rounding. Measured: 1e-7."""
SETTINGS = {
    **QUIET,
    "training__steps": STEPS,
    "training__micro_batch_size": 1,
    "training__gradient_accumulation_steps": BATCH // 4,
    "training__learning_rate": 1e-3,
    "checkpoints__interval_steps": 20,
    "cluster__ranks_per_node": 1,
}


def without_dropout(stage: int) -> dict[str, object]:
    # Which numbers dropout draws depends on the rank.
    model = {
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
    }
    return {"model__config": model, "training__deepspeed": {"zero_optimization": {"stage": stage}}}


def losses_and_samples(runs: SlurmRuns) -> tuple[dict[int, float], dict[int, list[int]]]:
    """Loss and samples of each step of the surviving branch."""
    losses: dict[int, float] = {}
    samples: dict[int, list[int]] = {}
    for attempt in runs.history().attempts:
        number, start = attempt.started.attempt, attempt.resumed.step if attempt.resumed else 0
        losses = {step: loss for step, loss in losses.items() if step <= start}
        samples = {step: ids for step, ids in samples.items() if step <= start}
        losses.update((row["step"], row["loss"]) for row in read_rows(runs.run().metrics(number)) if "step" in row)
        for rank in range(attempt.ready.world_size if attempt.ready else 0):
            for row in read_rows(runs.run().samples(number, rank)):
                samples.setdefault(row["step"], []).extend(row["samples"])
    return losses, {step: sorted(ids) for step, ids in samples.items()}


@pytest.mark.parametrize("stage", [2, pytest.param(3, marks=pytest.mark.full)])
def test_four_nodes_then_two_then_three_then_four(slurm: MiniSlurm, tmp_path: Path, stage: int) -> None:
    settings = {**SETTINGS, **without_dropout(stage)}
    (tmp_path / "plain").mkdir()
    plain = submit(slurm, tmp_path / "plain", cluster__nodes=4, **settings)
    plain.wait_for_state("finished")

    runs = submit(slurm, tmp_path, cluster__nodes="2-4", **settings)
    for step, gone, back in ((20, ("n3", "n4"), ()), (60, (), ("n3",)), (100, (), ("n4",))):
        runs.wait(lambda step=step: runs.step() >= step, f"step {step}")  # type: ignore[misc]
        if gone:
            drain(slurm, *gone)
        if back:
            slurm.run("scontrol", "update", f"NodeName={','.join(back)}", "State=RESUME")
        attempts = len(runs.history().attempts)
        put_back(runs)
        runs.wait(
            lambda attempts=attempts: len(runs.events(ev.Resumed)) > attempts,  # type: ignore[misc]
            "the next attempt trains",
        )
    runs.wait_for_state("finished")

    assert sizes(runs) == [(4, 4), (2, 2), (3, 3), (4, 4)]
    conversions = [(event.before, event.now) for event in runs.events(ev.CheckpointConverted)]
    assert conversions == [(4, 2), (2, 3), (3, 4)]
    losses, samples = losses_and_samples(runs)
    expected, their_samples = losses_and_samples(plain)
    assert samples == their_samples
    seen = Counter(sample for ids in samples.values() for sample in ids)
    assert set(seen.values()) == {STEPS * BATCH // SAMPLES}
    worst = max(abs(losses[step] - expected[step]) / expected[step] for step in range(1, STEPS + 1))
    assert worst < TOLERANCE, f"largest relative difference of a loss: {worst:.1e}"
