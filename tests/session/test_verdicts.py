"""What the monitor says as the journal has it, and when the journal says that an incident is being got over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpc_resume.monitor import Verdict
from hpc_resume.recovery import Decision, fold
from hpc_resume.recovery import events as ev
from hpc_resume.recovery.decisions import Plan
from hpc_resume.session.verdicts import as_event, follows_loss_incident, result_incident

VERDICT = Verdict(
    kind="incident",
    detector="spike",
    onset_step=8,
    onset_position=56,
    step=10,
    position=80,
    severity=2.5,
    may_recover=True,
    message="up",
    numbers={"loss": 9.0},
)


def test_an_incident_keeps_all_that_the_monitor_said() -> None:
    assert as_event(VERDICT, attempt=3) == ev.LossIncident(
        attempt=3,
        detector="spike",
        onset_step=8,
        onset_position=56,
        step=10,
        position=80,
        message="up",
        numbers={"loss": 9.0},
        severity=2.5,
        may_recover=True,
    )


def test_a_near_miss_keeps_all_but_the_samples_that_nobody_will_leave_out() -> None:
    assert as_event(replace(VERDICT, kind="near_miss"), attempt=3) == ev.NearMiss(
        attempt=3,
        detector="spike",
        onset_step=8,
        step=10,
        message="up",
        numbers={"loss": 9.0},
        severity=2.5,
        may_recover=True,
    )


def test_weights_that_are_no_result_do_not_recover() -> None:
    incident = result_incident(attempt=3, step=10, position=80, batch=8, message="not finite")
    assert (incident.onset_position, incident.severity, incident.may_recover) == (72, 1.0, False)


def going_on(rule: str, step: int, budget: str | None = None) -> Decision:
    plan = Plan(checkpoint=f"at-{step}" if step else None, step=step, position=step, branch=0)
    return Decision(number=0, action="requeue", rule=rule, reason="", plan=plan, budget=budget)  # type: ignore[arg-type]


def stop(rule: str, budget: str | None = None) -> Decision:
    return Decision(number=0, action="stop", rule=rule, reason="", outcome="failed", budget=budget)  # type: ignore[arg-type]


START = going_on("first start", 0)
LOSS = going_on("loss incident", 100, "loss")
SPENT = stop("budget spent", "loss")
SAVE_FAILED = Decision(number=0, action="continue", rule="save failed", reason="", budget="save")


@pytest.mark.parametrize(
    ("decisions", "expected"),
    [
        pytest.param([], False, id="nothing happened"),
        pytest.param([going_on("crash", 100, "crash")], False, id="a crash"),
        pytest.param([going_on("out of time", 100, "idle")], False, id="the end of the job's time"),
        pytest.param([LOSS], True, id="an incident"),
        pytest.param([LOSS, going_on("crash", 100, "crash")], True, id="then a crash before the next save"),
        pytest.param([LOSS, going_on("preempted", 100, "idle")], True, id="then a preemption before the next save"),
        pytest.param([LOSS, going_on("rehearsal", 100)], True, id="then a drill before the next save"),
        pytest.param([LOSS, SAVE_FAILED], True, id="then a save that failed"),
        pytest.param([LOSS, going_on("checkpoint rejected", 80)], True, id="then the checkpoint is damaged"),
        pytest.param([LOSS, going_on("crash", 120, "crash")], False, id="then a crash after the next save"),
        pytest.param([LOSS, going_on("rehearsal", 120)], False, id="then a drill after the next save"),
        pytest.param(
            [LOSS, going_on("crash", 120, "crash"), going_on("loss incident", 110, "loss")], True, id="then another one"
        ),
        pytest.param([LOSS, SPENT, going_on("resubmitted", 90)], True, id="the last one, and a person goes on"),
        pytest.param(
            [LOSS, going_on("crash", 120, "crash"), stop("asked to stop"), going_on("resubmitted", 140)],
            False,
            id="long ago, and a person goes on",
        ),
    ],
)
def test_an_incident_is_being_got_over_until_a_checkpoint_is_loaded_that_was_saved_since(
    decisions: list[Decision], expected: bool
) -> None:
    numbered = [replace(decision, number=number) for number, decision in enumerate([START, *decisions], start=1)]
    assert follows_loss_incident(fold(ev.Decided(decision=decision) for decision in numbered)) is expected
