"""Between monitor and journal: what the one says as the other has it, and what the journal means for the monitor."""

from __future__ import annotations

from typing import Any

from hpc_resume.monitor import Verdict
from hpc_resume.recovery import History
from hpc_resume.recovery import events as ev


def as_event(verdict: Verdict, attempt: int) -> ev.LossIncident | ev.NearMiss:
    """Return the event of a verdict."""
    common: dict[str, Any] = {
        "attempt": attempt,
        "detector": verdict.detector,
        "onset_step": verdict.onset_step,
        "step": verdict.step,
        "severity": verdict.severity,
        "may_recover": verdict.may_recover,
        "message": verdict.message,
        "numbers": verdict.numbers,
    }
    if not verdict.is_incident:
        return ev.NearMiss(**common)
    return ev.LossIncident(**common, onset_position=verdict.onset_position, position=verdict.position)


def result_incident(attempt: int, step: int, position: int, batch: int, message: str) -> ev.LossIncident:
    """Return the event of a last step after which the weights are no result; a step takes `batch` samples."""
    return ev.LossIncident(
        attempt=attempt,
        detector="result",
        onset_step=step,
        onset_position=max(0, position - batch),
        step=step,
        position=position,
        severity=1.0,
        may_recover=False,
        message=message,
    )


def follows_loss_incident(history: History) -> bool:
    """Tell whether the newest plan starts where a loss incident made the training go back to, or before that.

    So from the decision about the incident until a checkpoint is loaded that was saved after it: whoever loads the
    same one again, in another attempt, is to be judged as the first time. What is saved later holds what the monitor
    knows of the incident.
    """
    decisions = history.decisions
    newest = max((i for i, decision in enumerate(decisions) if decision.budget == "loss"), default=len(decisions))
    # The decision itself, or if that was to stop, the one to go on all the same.
    back = next((decision.plan for decision in decisions[newest:] if decision.plan is not None), None)
    plan = history.plan_decision.plan
    return back is not None and plan is not None and plan.step <= back.step
