"""Which checkpoint becomes a model: a healthy one, unless a person insists."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hpc_resume.errors import CheckpointError, ConfigError
from hpc_resume.recovery import events as ev
from hpc_resume.recovery.history import History


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """A checkpoint to export; `objection` says why it can't be trusted, None that it can."""

    checkpoint: ev.Checkpoint
    objection: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """What tells whether a checkpoint is healthy."""

    history: History
    newest_step: int
    """The newest step that still counts."""
    certify_after_steps: int
    margin_steps: int

    def objection(self, checkpoint: ev.Checkpoint) -> str | None:
        """Say why a checkpoint can't be trusted; None if it is healthy.

        Healthy is what is certified and, once a run has finished, all that it went through on the way to its end.
        """
        history = self.history
        reason = history.set_aside.get(checkpoint.name)
        if reason is not None:
            return _look_back(_incident_of(history, checkpoint)) if reason == "suspect" else f"set aside: {reason}"
        open_loss = history.undecided
        if isinstance(open_loss, ev.LossIncident) and checkpoint.step > open_loss.onset_step - self.margin_steps:
            return _look_back(open_loss)
        if history.finished is not None or checkpoint.name in history.certified:
            return None
        followed, needed = self.newest_step - checkpoint.step, self.certify_after_steps
        if 0 <= followed < needed:
            return f"not certified yet: only {followed} of {needed} healthy steps have followed it"
        return "not certified yet"


def choose_for_export(standing: Standing, *, step: int | None, force: bool) -> Choice:
    """Choose the checkpoint of a step; without one the newest that is healthy, which of a finished run is its last.

    With `force` one that is not healthy may be chosen, but of several only where there is no better one.

    Raises:
        ConfigError: the step has no checkpoint any more, or none that is healthy, and nobody insists.
        CheckpointError: no step is named, and there is nothing to choose from.
    """
    history = standing.history
    there = [c for c in history.known.values() if c.name not in history.deleted]
    if not there:
        raise CheckpointError("this run has no checkpoint so far; try again once it has saved one (see `status`)")
    of_step = [c for c in there if step is None or c.step == step]
    if not of_step:
        raise ConfigError(_no_such_step(history, there, step))
    best = max(of_step, key=lambda c: _rank(standing, c))
    objection = standing.objection(best)
    if objection is None or force:
        return Choice(checkpoint=best, objection=objection)
    if step is None:
        raise CheckpointError(
            f"this run has no healthy checkpoint so far; the newest, {best.name}: {objection}; wait, or export it all "
            f"the same with --step {best.step} --force"
        )
    healthy = [c.step for c in there if standing.objection(c) is None]
    other = f"the newest healthy one is that of step {max(healthy)}" if healthy else "no other one is healthy"
    raise ConfigError(f"{best.name} is not exported: {objection}; {other}; --force exports this one all the same")


def _rank(standing: Standing, checkpoint: ev.Checkpoint) -> tuple[bool, bool, int, int]:
    healthy = standing.objection(checkpoint) is None
    usable = checkpoint.name not in standing.history.set_aside
    return healthy, usable, checkpoint.step, checkpoint.save_number


def _no_such_step(history: History, there: list[ev.Checkpoint], step: int | None) -> str:
    steps = ", ".join(map(str, sorted({c.step for c in there})))
    deleted = any(c.step == step for c in history.known.values())
    found = f"the checkpoint of step {step} was deleted" if deleted else f"there is no checkpoint of step {step}"
    return f"{found}; there are those of step {steps}"


def _look_back(incident: ev.LossIncident | None) -> str:
    return (
        "suspect" if incident is None else f"suspect: inside the look-back of the loss incident at step {incident.step}"
    )


def _incident_of(history: History, checkpoint: ev.Checkpoint) -> ev.LossIncident | None:
    """Return the incident that made a checkpoint suspect: the last on its branch that is not older than itself."""
    on_branch = (i for i, branch in _incidents(history) if branch == checkpoint.branch and i.step >= checkpoint.step)
    return next(reversed(list(on_branch)), None)


def _incidents(history: History) -> Iterator[tuple[ev.LossIncident, int]]:
    """Yield each incident that was decided on, with the branch that it happened on."""
    incidents = iter(history.incidents)
    branch = 0
    for decision in history.decisions:
        # One decision follows each incident, and nothing else draws on that budget.
        if decision.budget == "loss" and (incident := next(incidents, None)) is not None:
            yield incident, branch
        if decision.plan is not None:
            branch = decision.plan.branch
