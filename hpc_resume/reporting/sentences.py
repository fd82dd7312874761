"""Events in words."""

from __future__ import annotations

from hpc_resume.recovery import events as ev
from hpc_resume.recovery.decisions import Decision

_PEOPLE: dict[type[ev.Event], str] = {
    ev.Submitted: "submitted",
    ev.ResubmitRequested: "sent again by a person",
    ev.CancelRequested: "cancelled by a person",
}


def sentence(event: ev.Event) -> str | None:  # noqa: C901, PLR0911, PLR0912 - one line per kind of event
    """Say in one sentence what happened; None for what only programs care about."""
    match event:
        case ev.ClaimOpened():
            return f"supervisor {event.claim} took the run over" if event.claim > 1 else "supervisor started"
        case ev.ClaimRefused():
            return f"supervisor {event.claim} refused: {event.reason}"
        case ev.ClaimLost():
            return f"supervisor {event.claim} {event.reason}"
        case ev.ClaimEnded():
            # Any other end was decided, and the decision has said so.
            return "back to the queue" if event.outcome == "requeued" else None
        case ev.Submitted() | ev.ResubmitRequested() | ev.CancelRequested():
            return _PEOPLE[type(event)]
        case ev.JobCancelled():
            return event.message
        case ev.AttemptStarted():
            where = ", ".join(event.nodes) or event.host
            return f"attempt {event.attempt} starts on {where}, data seed {event.data_seed}"
        case ev.AttemptEnded():
            if event.cause in ("decided", "finished"):
                return None
            return f"attempt {event.attempt} ended ({event.cause}): {event.message}"
        case ev.Resumed():
            if event.checkpoint is None:
                return "starts at the beginning"
            return f"goes on after step {event.step} from checkpoint {event.checkpoint}"
        case ev.LossIncident():
            return (
                f"loss incident since step {event.onset_step}, seen at step {event.step} ({_gravity(event)}): "
                f"{event.message}"
            )
        case ev.NearMiss():
            return f"near miss at step {event.onset_step} ({_gravity(event)}): {event.message}"
        case ev.StopAgreed():
            return f"all ranks left at step {event.step}" + (" and saved there" if event.checkpoint else "")
        case ev.ReplayDiffers():
            return f"replayed step {event.step} gave loss {event.now!r}, not {event.before!r} as before"
        case ev.FaultInjected():
            return f"injected fault `{event.fault}` before step {event.step}"
        case ev.RunFinished():
            return f"finished at step {event.step} with loss {event.loss:.4f}; model in {event.model}"
        case ev.Decided():
            return _decision(event.decision)
        case ev.Disagreement():
            return f"sources disagree: {event.message}"
        case _:
            return _of_checkpoint(event)


def _of_checkpoint(event: ev.Event) -> str | None:
    match event:
        case ev.CheckpointAdopted():
            return f"found checkpoint {event.checkpoint.name}, committed but not recorded, and took it over"
        case ev.CheckpointRejected():
            return f"checkpoint {event.name} can't be used: {event.reason}"
        case ev.CheckpointQuarantined():
            return f"set checkpoint {event.name} aside ({event.reason})"
        case ev.CheckpointConverted():
            return (
                f"loaded checkpoint {event.name} of {event.before} ranks with {event.now}: what follows is continuous, "
                "but not the same to the last bit"
            )
        case ev.IntervalChosen():
            return f"saves {event.message}"
        case ev.SaveFailed():
            return f"a save failed: {event.message}"
        case _:
            return None


def _gravity(event: ev.LossIncident | ev.NearMiss) -> str:
    """Say which detector spoke, and how far beyond its limit the training was, as far as that is known."""
    said = event.detector
    if event.severity is not None and event.severity > 1:
        said += f", {event.severity:.3g} times its limit"
    if event.may_recover is False:
        said += ", can't recover"
    return said


def concerns(event: ev.Event, run: int) -> bool:
    """Tell whether an event of a submission is about this run; those of a run's own files are."""
    runs = getattr(event, "runs", None)
    return runs is None or run in runs


def _decision(decision: Decision) -> str | None:
    if decision.action == "continue" or decision.rule == "finished":
        return None
    if decision.plan is None:
        return f"decided to stop (rule: {decision.rule}): {decision.reason}"
    plan = decision.plan
    origin = f"step {plan.step}" if plan.checkpoint else "the beginning"
    order = ", with a new order of the samples that are left" if plan.perturb else ""
    budget = f" [{decision.budget} budget: {decision.used} used]" if decision.budget else ""
    return f"decided to {decision.action} from {origin}{order} (rule: {decision.rule}){budget}"


def step_of(event: ev.Event) -> int | None:
    """Return the step that an event is about."""
    match event:
        case ev.CheckpointCommitted() | ev.CheckpointAdopted():
            return event.checkpoint.step
        case ev.Decided():
            return event.decision.plan.step if event.decision.plan else None
        case _:
            step = getattr(event, "step", None)
            return step if isinstance(step, int) else None
