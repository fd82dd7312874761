"""The one rule function: policy, history and the newest event in, a decision out."""

from __future__ import annotations

from hpc_resume.recovery import events as ev
from hpc_resume.recovery.decisions import Action, Budget, Decision, Plan, StopOutcome
from hpc_resume.recovery.history import History
from hpc_resume.recovery.policy import Policy

KILLED_FOR_MEMORY = "killed for its memory"
"""The fingerprint of a rank that the cluster killed for the host memory that it took."""

Trigger = (
    ev.AttemptEnded
    | ev.LossIncident
    | ev.CheckpointRejected
    | ev.SaveFailed
    | ev.StopRequested
    | ev.FaultInjected
    | None
)


def decide(policy: Policy, history: History, event: Trigger) -> Decision:
    """Decide what follows from `event`, which is already part of `history`.

    `None` asks what a supervisor does that finds nothing left to react to: the first start, or a resubmission.
    """
    if history.cancelled:
        # Somebody may bring the run back: then not from what an incident that nobody decided on made suspect.
        open_loss = history.undecided if isinstance(history.undecided, ev.LossIncident) else None
        after = open_loss.onset_step - policy.rollback_margin_steps if open_loss else None
        budget: Budget | None = "loss" if open_loss else None
        return _stop(history, "cancelled", "cancelled by a person", "cancelled", budget=budget, suspect_after=after)
    match event:
        case None:
            return _start(policy, history)
        case ev.LossIncident():
            return _loss(policy, history, event)
        case ev.CheckpointRejected():
            return _rejected(history, event)
        case ev.SaveFailed():
            return _save_failed(policy, history, event)
        case ev.StopRequested():
            return _stop(history, "asked to stop", "asked to stop between two attempts", "stopped")
        case ev.FaultInjected():
            return _rehearsed(history, event)
        case ev.AttemptEnded():
            return _ended(policy, history, event)


def _start(policy: Policy, history: History) -> Decision:
    if history.finished is not None:
        return _stop(history, "finished", f"finished at step {history.finished.step}", "finished")
    if history.resubmitted or history.attempts:
        # What stopped for its loss would only meet the same samples again.
        perturb = "loss" in policy.perturb_on and bool(history.decisions) and history.decisions[-1].budget == "loss"
        return _go_on(history, "resubmitted", "sent again by a person", action="launch", perturb=perturb)
    return _go_on(history, "first start", "nothing was trained yet", action="launch")


def _ended(policy: Policy, history: History, event: ev.AttemptEnded) -> Decision:
    match event.cause:
        case "finished":
            return _stop(history, "finished", event.message, "finished")
        case "cancelled":
            return _stop(history, "cancelled", event.message, "cancelled")
        case "terminated":
            return _stop(history, "asked to stop", event.message, "stopped")
        case "input":
            return _stop(history, "input", event.message, "failed")
        case "deadline":
            return _go_on(history, "out of time", event.message, action="requeue", spend=("idle", policy.idle_budget))
        case "preempted":
            return _go_on(history, "preempted", event.message, action="requeue", spend=("idle", policy.idle_budget))
        case "node":
            perturb = "node" in policy.perturb_on
            return _go_on(
                history,
                "node lost",
                event.message,
                action="requeue",
                perturb=perturb,
                spend=("node", policy.node_budget),
            )
        case "port":
            return _go_on(history, "port taken", event.message, action="launch", spend=("idle", policy.idle_budget))
        case "decided":
            raise ValueError("the workers left because of a decision: carry that one out instead")
        case "crash" | "hang" | "out_of_memory":
            return _crashed(policy, history, event)


def _crashed(policy: Policy, history: History, event: ev.AttemptEnded) -> Decision:
    avoid: tuple[str, ...] = ()
    if event.cause != "hang" and _is_repeated(history):
        if event.cause == "out_of_memory":
            return _stop(
                history, "out of memory", f"{event.message}, twice at the same place; {_advice(event)}", "failed"
            )
        (_, node, _), (_, other, step) = history.crashes[-2:]
        if node != other or not event.avoidable:
            where = f"on {node} and on {other}" if node != other else "and no other node can be had"
            reason = f"the same failure twice since the checkpoint at step {step}, {where}: {event.message}"
            return _stop(history, "same crash twice", reason, "failed")
        avoid = (node,)
    rule = {"crash": "crash", "hang": "hang", "out_of_memory": "out of memory"}[event.cause]
    return _go_on(
        history,
        "same crash, other node" if avoid else rule,
        event.message,
        action="requeue",
        spend=("crash", policy.crash_budget),
        avoid=avoid,
    )


def _advice(event: ev.AttemptEnded) -> str:
    if event.fingerprint == KILLED_FOR_MEMORY or event.fingerprint.startswith("MemoryError"):
        return (
            "that is memory of the host: ask for more of it, or save without a copy in it (checkpoints.mode: sync, "
            "or a checkpoints.staging_dir)"
        )
    return "use smaller micro batches or more ranks"


def _is_repeated(history: History) -> bool:
    """Tell whether the last two crashes were the same, with no new checkpoint between them."""
    last = [(fingerprint, step) for fingerprint, _, step in history.crashes[-2:]]
    return len(last) == 2 and last[0] == last[1]


def _loss(policy: Policy, history: History, event: ev.LossIncident) -> Decision:
    last_safe_step = event.onset_step - policy.rollback_margin_steps
    before = [c for c in history.lineage if c.step <= last_safe_step]
    certified = [c for c in before if c.name in history.certified]
    # Without a certified one, a candidate from before the onset is worth more than the way back to the start.
    choice = certified or before
    newest = choice[-1].step if choice else 0
    used = 1 if newest > history.high_water_step else history.used.get("loss", 0) + 1
    if used > policy.loss_budget:
        return _spent(history, "loss", policy.loss_budget, event.message, suspect_after=last_safe_step)
    if not choice and (why := _why_nothing_is_left(history)):
        text = f"nothing is left that is old enough ({why}): {event.message}"
        return _stop(history, "no checkpoint left", text, "failed", budget="loss", suspect_after=last_safe_step)
    depth = min(used, len(choice))
    return _resume(
        history,
        choice[-depth] if choice else None,
        rule="loss incident",
        reason=event.message,
        action="requeue",
        perturb="loss" in policy.perturb_on,
        budget="loss",
        used=used,
    )


def _rejected(history: History, event: ev.CheckpointRejected) -> Decision:
    return _go_on(history, "checkpoint rejected", f"{event.name}: {event.reason}", action="rollback")


def _rehearsed(history: History, event: ev.FaultInjected) -> Decision:
    reason = f"`{event.fault}` before step {event.step} was asked for"
    if not history.lineage:
        # The first weights are nowhere but in the processes that made them.
        text = f"{reason}, but nothing was saved yet"
        return Decision(number=history.next_decision, action="continue", rule="rehearsal", reason=text)
    return _go_on(history, "rehearsal", reason, action="rollback")


def _save_failed(policy: Policy, history: History, event: ev.SaveFailed) -> Decision:
    if history.saves_failed > policy.save_budget:
        reason = f"{history.saves_failed} saves in a row failed: {event.message}"
        return _stop(history, "saves keep failing", reason, "failed")
    return Decision(
        number=history.next_decision,
        action="continue",
        rule="save failed",
        reason=event.message,
        budget="save",
        used=history.saves_failed,
    )


def _go_on(
    history: History,
    rule: str,
    reason: str,
    *,
    action: Action,
    perturb: bool = False,
    spend: tuple[Budget, int] | None = None,
    avoid: tuple[str, ...] = (),
) -> Decision:
    """Go on from the newest committed checkpoint of the current branch, within the budget if one is named."""
    newest = history.lineage[-1] if history.lineage else None
    budget, used = None, 0
    if spend is not None:
        budget, allowed = spend
        progress = newest is not None and newest.step > history.high_water_step
        used = 1 if progress else history.used.get(budget, 0) + 1
        if used > allowed:
            return _spent(history, budget, allowed, reason)
    return _resume(
        history,
        newest,
        rule=rule,
        reason=reason,
        action=action,
        perturb=perturb,
        budget=budget,
        used=used,
        avoid=avoid,
    )


def _resume(
    history: History,
    checkpoint: ev.Checkpoint | None,
    *,
    rule: str,
    reason: str,
    action: Action,
    perturb: bool,
    budget: Budget | None,
    used: int,
    avoid: tuple[str, ...] = (),
) -> Decision:
    if checkpoint is None and (why := _why_nothing_is_left(history)):
        text = f"nothing is left that is old enough ({why}): {reason}"
        return _stop(history, "no checkpoint left", text, "failed")
    step = checkpoint.step if checkpoint else 0
    leaves_steps_behind = any(c.step > step for c in history.lineage)
    plan = Plan(
        checkpoint=checkpoint.name if checkpoint else None,
        step=step,
        position=checkpoint.position if checkpoint else 0,
        branch=history.branch + (1 if perturb or leaves_steps_behind else 0),
        perturb=perturb,
        lr_factor=history.lr_factor,
        avoid_nodes=avoid,
    )
    return Decision(
        number=history.next_decision, action=action, rule=rule, reason=reason, plan=plan, budget=budget, used=used
    )


def _why_nothing_is_left(history: History) -> str:
    """Say what became of checkpoints that might be gone back to; empty if the beginning is where to start anew."""
    reasons = []
    if history.rejected:
        reasons.append(f"{', '.join(history.rejected)} can't be loaded")
    if deleted := _deleted_ways_back(history):
        reasons.append(f"{len(deleted)} older ones were deleted")
    return "; ".join(reasons)


def _deleted_ways_back(history: History) -> frozenset[str]:
    """Return what was deleted and might have been gone back to, which what had been set aside might not."""
    return history.deleted - history.set_aside.keys()


def _sparing_the_last(history: History, suspect_after: int | None) -> int | None:
    """Move a limit up so far that it leaves a checkpoint, where older ones were deleted: a person may go on from it."""
    steps = [checkpoint.step for checkpoint in history.lineage]
    if suspect_after is None or not steps or steps[0] <= suspect_after or not _deleted_ways_back(history):
        return suspect_after
    return steps[0]


def _spent(
    history: History, budget: Budget, allowed: int, reason: str, *, suspect_after: int | None = None
) -> Decision:
    text = f"the {budget} budget is spent ({allowed} in a row without progress); last: {reason}"
    return _stop(history, "budget spent", text, "failed", budget=budget, used=allowed, suspect_after=suspect_after)


def _stop(
    history: History,
    rule: str,
    reason: str,
    outcome: StopOutcome,
    *,
    budget: Budget | None = None,
    used: int = 0,
    suspect_after: int | None = None,
) -> Decision:
    return Decision(
        number=history.next_decision,
        action="stop",
        rule=rule,
        reason=reason,
        outcome=outcome,
        budget=budget,
        used=used,
        suspect_after=_sparing_the_last(history, suspect_after),
    )
