"""What `backtest` says about a curve: in words, as a table, and for programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.text import Text

from hpc_resume.cli import output
from hpc_resume.loss_logs import LossCurve, replay
from hpc_resume.loss_logs.numbers import counted
from hpc_resume.monitor import MonitorSettings, Verdict
from hpc_resume.monitor.divergence import BLOCK_STEPS as DIVERGENCE_BLOCK
from hpc_resume.monitor.forecast import SHORT
from hpc_resume.monitor.plateau import BLOCK_STEPS as PLATEAU_BLOCK
from hpc_resume.monitor.rise import LIMIT
from hpc_resume.monitor.spike import GROSS, MEAN_STEPS, SPARSE_STEPS
from hpc_resume.recovery import History, decide
from hpc_resume.recovery import events as ev
from hpc_resume.recovery.decisions import Decision
from hpc_resume.recovery.policy import Policy


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """By what the curves are judged."""

    monitor: MonitorSettings
    policy: Policy


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """One curve and what would have come of it."""

    name: str
    life: int | None
    points: int
    least_points: int
    """Fewer than so many can't be judged."""

    first_step: int
    last_step: int
    interval: int
    notes: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    at_end: Verdict | None
    """The one that was reached only because the log ends."""

    decision: Decision | None
    """What would have been done about the first incident; None if there is none."""

    loss_budget: int

    @property
    def first_incident(self) -> Verdict | None:
        """The incident at which a live run would have gone back."""
        return next((verdict for verdict in self.verdicts if verdict.is_incident), None)

    @property
    def too_short(self) -> bool:
        """Whether it says nothing that nothing fired."""
        return not self.verdicts and self.points < self.least_points


def judge(curve: LossCurve, rules: Rules) -> Judged:
    """Replay a curve, and ask the rules of recovery what they make of its first incident."""
    replayed = replay(curve, rules.monitor)
    first = next((verdict for verdict in replayed.verdicts if verdict.is_incident), None)
    return Judged(
        name=curve.name,
        life=curve.life,
        points=len(curve.points),
        # The first value that is judged comes after so many.
        least_points=SHORT + rules.monitor.spike_warmup_steps + 1,
        first_step=curve.points[0].step,
        last_step=curve.points[-1].step,
        interval=curve.interval,
        notes=curve.notes,
        verdicts=replayed.verdicts,
        at_end=replayed.at_end,
        decision=None if first is None else decision_about(first, rules.policy),
        loss_budget=rules.policy.loss_budget,
    )


def decision_about(verdict: Verdict, policy: Policy) -> Decision:
    """Ask the rules of recovery what they would decide about a first incident.

    A log does not say what was saved. So the history that they see has one certified checkpoint, the newest that they
    may take; none where the onset is too near to the beginning.
    """
    incident = ev.LossIncident(
        attempt=1,
        detector=verdict.detector,
        onset_step=verdict.onset_step,
        onset_position=verdict.onset_position,
        step=verdict.step,
        position=verdict.position,
        message=verdict.message,
        numbers=verdict.numbers,
    )
    step = verdict.onset_step - policy.rollback_margin_steps
    history = History()
    if step > 0:
        saved = ev.Checkpoint(name="the newest", step=step, position=step, branch=0, save_number=1)
        history = History(lineage=(saved,), known={saved.name: saved}, certified=frozenset({saved.name}))
    return decide(policy, history, incident)


def heading(judged: Judged) -> str:
    """Say in a few words what a curve is and what became of it."""
    every = "every step" if judged.interval == 1 else f"every {judged.interval:,} steps"
    incidents = sum(verdict.is_incident for verdict in judged.verdicts)
    near_misses = len(judged.verdicts) - incidents
    span = f"steps {judged.first_step:,} to {judged.last_step:,}, {every}"
    what = ", ".join(counted(n, noun) for n, noun in ((incidents, "incident"), (near_misses, "near miss")) if n)
    nothing = (
        f"too short to judge (fewer than {judged.least_points} points)"
        if judged.too_short
        else "nothing would have fired"
    )
    return f"{counted(judged.points, 'point')}, {span}: {what or nothing}"


def show(judged: Judged) -> None:
    """Print what would have fired on a curve, when, and what would have been done."""
    output.say(Text.assemble((judged.name, "bold"), f": {heading(judged)}"))
    for note in judged.notes:
        output.say(f"  note: {note}")
    if judged.verdicts:
        head = ("kind", "detector", "onset step", "step", "delay", "severity", "message")
        output.write_table(head, [_cells(verdict, judged) for verdict in judged.verdicts])
    consequence = in_words(judged)
    if consequence is not None:
        output.say(f"  {consequence}")
    if judged.first_incident is not None and judged.verdicts[-1] is not judged.first_incident:
        output.say(
            f"  what follows step {judged.first_incident.step} would not have happened as logged: the later verdicts "
            "are those of a training in which nobody acted"
        )


def _cells(verdict: Verdict, judged: Judged) -> tuple[str, ...]:
    into = verdict.step - verdict.onset_step + 1
    whole = "the log" if judged.life is None else "this life"
    ending = f"; {whole} ends {counted(into, 'step')} into it" if verdict is judged.at_end else ""
    return (
        verdict.kind.replace("_", " "),
        verdict.detector,
        str(verdict.onset_step),
        str(verdict.step),
        str(verdict.step - verdict.onset_step),
        f"{verdict.severity:.3g}",
        f"{verdict.message}{ending}",
    )


def in_words(judged: Judged) -> str | None:
    """Say what recovery would have done about the first incident; None if there is none."""
    decision, incident = judged.decision, judged.first_incident
    if decision is None or incident is None:
        return None
    when = f"at step {incident.step}" + (", had training ended there," if incident is judged.at_end else "")
    if decision.plan is None:
        return f"{when} it would have stopped (rule: {decision.rule}): {decision.reason}"
    origin = "the beginning"
    if decision.plan.checkpoint is not None:
        origin = f"the newest certified checkpoint of step {decision.plan.step} or before"
    order = ", and the samples that are left would have got a new order" if decision.plan.perturb else ""
    budget = f" [{decision.budget} budget: {decision.used} of {judged.loss_budget} used]"
    return f"{when} it would have gone back to {origin}{order} (rule: {decision.rule}){budget}"


def warning(judged: Judged, *, explained: bool) -> str | None:
    """Say how a log that is not of every step is judged otherwise than a live run; None if it is of every step.

    What survived says it for the other lives in the same log. Where it was `explained` for this interval, a short
    line is enough.
    """
    every = judged.interval
    if every == 1 or judged.life is not None:
        return None
    if explained:
        return f"{judged.name} has a value only every {every:,} steps, too"
    said = (
        f"{judged.name} has a value only every {every:,} steps, perhaps a mean over them: what came and went between "
        f"two values is not seen; patience is counted in steps, but noise and slow rises in values, {PLATEAU_BLOCK} of "
        f"them ({PLATEAU_BLOCK * every:,} steps) at a time for a plateau and {DIVERGENCE_BLOCK} "
        f"({DIVERGENCE_BLOCK * every:,} steps) for a divergence"
    )
    if every >= SPARSE_STEPS:
        said += "; two values out of bounds are a spike, where a log of every step needs three"
    if every >= MEAN_STEPS:
        said += f", and so is a single one that is {GROSS / LIMIT:g} times as far up as the bounds"
    return said


def for_programs(judged: Judged, picture: Path | None) -> dict[str, Any]:
    """Return everything about a curve as plain values."""
    decision = judged.decision
    return {
        "name": judged.name,
        "life": judged.life,
        "points": judged.points,
        "first_step": judged.first_step,
        "last_step": judged.last_step,
        "interval": judged.interval,
        "notes": list(judged.notes),
        "too_short": judged.too_short,
        "verdicts": [asdict(verdict) | {"at_end": verdict is judged.at_end} for verdict in judged.verdicts],
        "recovery": None
        if decision is None
        else {
            "rule": decision.rule,
            "action": decision.action,
            "resume_step": decision.plan.step if decision.plan else None,
            "new_order": decision.plan.perturb if decision.plan else False,
            "sentence": in_words(judged),
        },
        "plot": None if picture is None else str(picture),
    }
