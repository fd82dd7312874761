"""A run whose loss really explodes requeues itself, goes on from before the onset, and finishes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.training import BATCH, SAMPLES, STEPS, Outcome, status

from hpc_resume.data_order import DataOrder
from hpc_resume.journal.order import segments_in_force
from hpc_resume.recovery import events as ev

SPIKE = {"kind": "spike", "step": 22, "lr_factor": 1e5, "duration_steps": 3}

pytestmark = pytest.mark.deepspeed


def assert_each_sample_once(outcome: Outcome) -> list[int]:
    """Every finished epoch of the surviving branch holds every sample exactly once, as really trained on."""
    stream = [sample for step in outcome.samples().values() for sample in step]
    assert len(stream) == STEPS * BATCH
    for start in range(0, len(stream) - SAMPLES + 1, SAMPLES):
        assert sorted(stream[start : start + SAMPLES]) == list(range(SAMPLES))
    tail = stream[len(stream) // SAMPLES * SAMPLES :]
    assert len(set(tail)) == len(tail)
    return stream


def test_a_spike_is_undone_with_a_new_order_and_no_sample_is_lost_or_doubled(train: Callable[..., Outcome]) -> None:
    outcome = train(faults=[SPIKE])

    assert outcome.code == 0, outcome.output
    history = outcome.history
    (incident,) = history.incidents
    assert 22 <= incident.onset_step <= 23
    decision = next(d for d in history.decisions if d.rule == "loss incident")
    assert decision.action == "requeue"
    assert decision.plan is not None
    assert decision.plan.step < incident.onset_step
    assert decision.plan.checkpoint in history.certified
    assert len(history.attempts) == 2
    assert [type(c.ended) for c in history.claims] == [ev.ClaimEnded, ev.ClaimEnded]
    assert history.finished is not None
    assert history.finished.step == STEPS

    stream = assert_each_sample_once(outcome)
    before = DataOrder(SAMPLES, 7)
    start = decision.plan.position
    assert stream[:start] == [before.sample_at(p) for p in range(start)]
    assert stream[start:] != [before.sample_at(p) for p in range(start, len(stream))]
    now = DataOrder(SAMPLES, 7, segments_in_force(history))
    assert stream == [now.sample_at(p) for p in range(len(stream))]

    losses = {step: float(loss) for step, loss in outcome.losses().items()}
    assert losses[STEPS] < losses[21]
    (summary,) = status(outcome)
    assert summary["state"] == "finished"
    assert summary["data_seed"] != 7
    assert "requeue" in outcome.output
    assert outcome.run.report.exists()
    # The model is what the surviving branch ended with, and ordinary transformers code loads it.
    from transformers import AutoModelForCausalLM

    assert AutoModelForCausalLM.from_pretrained(outcome.run.model).config.hidden_size == 32


def test_after_the_budget_is_spent_the_run_fails_with_one_sentence_and_nothing_stays_queued(
    train: Callable[..., Outcome],
) -> None:
    outcome = train(faults=[{**SPIKE, "times": 99}], recovery__loss_budget=1)

    assert outcome.code == 1
    assert len(outcome.history.incidents) == 2
    (summary,) = status(outcome)
    assert summary["state"] == "failed"
    assert "the loss budget is spent (1 in a row without progress)" in summary["last_word"]
    assert not outcome.run.model.exists()
    assert outcome.history.claims[-1].ended is not None
    from hpc_resume.reporting.jobs import Jobs

    assert not Jobs(outcome.folder).of(0, outcome.history).live


def test_poisoned_weights_are_a_loss_incident_too(train: Callable[..., Outcome]) -> None:
    # ZeRO 0 in fp32: nothing protects the weights, so the first non-finite step is an incident.
    outcome = train(faults=[{"kind": "nan", "step": 30, "rank": 1}], training__deepspeed=None)

    assert outcome.code == 0, outcome.output
    (incident,) = outcome.history.incidents
    assert incident.detector == "non_finite"
    assert incident.onset_step == 30
    assert_each_sample_once(outcome)
