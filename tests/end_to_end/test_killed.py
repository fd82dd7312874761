"""A run whose processes were all killed goes on as if nothing had happened, to the last bit."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from support.training import BATCH, SAMPLES, STEPS, Outcome

pytestmark = pytest.mark.deepspeed


def lost_node(step: int) -> list[dict[str, object]]:
    """All ranks and the supervisor are killed before this step."""
    return [{"kind": "node_lost", "step": step}]


@pytest.mark.parametrize(
    ("stage", "precision"),
    [(0, "fp32"), (1, "bf16"), (2, "fp32"), (3, "bf16")],
    ids=str,
)
def test_a_killed_run_equals_the_undisturbed_one_bit_for_bit(
    train: Callable[..., Outcome], stage: int, precision: str
) -> None:
    settings = {
        "training__deepspeed": {"zero_optimization": {"stage": stage}},
        "training__precision": precision,
        "recovery__perturb_on": ["loss"],
        # Loader processes read ahead; what counts is what was trained on.
        "data__loader_workers": 2 if stage == 2 else 0,
    }
    undisturbed = train(**settings)
    killed = train(**settings, faults=lost_node(27))

    assert (undisturbed.code, killed.code) == (0, 0), killed.output
    assert len(killed.history.attempts) == 2
    resumed = killed.history.attempts[1].resumed
    assert resumed is not None
    assert resumed.step == 24
    assert killed.losses() == undisturbed.losses()
    assert killed.samples() == undisturbed.samples()
    assert undisturbed.history.finished is not None
    assert killed.history.finished is not None
    assert killed.history.finished.weights_digest == undisturbed.history.finished.weights_digest
    assert killed.history.replay_differences == ()


def test_by_default_a_lost_node_gives_the_rest_of_the_samples_a_new_order(train: Callable[..., Outcome]) -> None:
    killed = train(faults=lost_node(10))

    assert killed.code == 0, killed.output
    decision = next(d for d in killed.history.decisions if d.rule == "node lost")
    assert decision.plan is not None
    assert decision.plan.perturb
    assert decision.plan.step == 8
    stream = [sample for step in killed.samples().values() for sample in step]
    assert len(stream) == STEPS * BATCH
    for start in range(0, len(stream) - SAMPLES + 1, SAMPLES):
        assert sorted(stream[start : start + SAMPLES]) == list(range(SAMPLES))


def test_no_process_outlives_a_lost_node(train: Callable[..., Outcome]) -> None:
    killed = train(faults=[{**lost_node(6)[0], "times": 99}], recovery__node_budget=0, data__loader_workers=2)

    assert killed.code == 1
    assert "the node budget is spent" in killed.output
    marker = str(killed.run.path).encode()
    alive = []
    for process in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208 - names are all we need
        try:
            with open(f"/proc/{process}/cmdline", "rb") as file:  # noqa: PTH123
                if marker in file.read():
                    alive.append(int(process))
        except OSError:
            continue
    for pid in alive:
        os.kill(pid, signal.SIGKILL)
    assert alive == []
