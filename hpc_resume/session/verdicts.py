"""What the monitor says, as the journal has it."""

from __future__ import annotations

from typing import Any

from hpc_resume.monitor import Verdict
from hpc_resume.recovery import events as ev


def as_event(verdict: Verdict, attempt: int) -> ev.LossIncident | ev.NearMiss:
    """Return the event of a verdict."""
    common: dict[str, Any] = {
        "attempt": attempt,
        "detector": verdict.detector,
        "onset_step": verdict.onset_step,
        "step": verdict.step,
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
        message=message,
    )
