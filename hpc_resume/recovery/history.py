"""The state of a run as a fold of its events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from hpc_resume.recovery import events as ev
from hpc_resume.recovery.decisions import Budget, Decision

VOID = "void: committed after its claim was over"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rewind:
    """The training went back (or on) to `position`; if it perturbs, that became a segment of the data order."""

    position: int
    number: int
    perturb: bool
    window: tuple[int, int] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """One supervisor's ownership of the run."""

    request: ev.ClaimRequested
    opened: bool = False
    committed: tuple[str, ...] = ()
    """Checkpoints that were on the disk when it was opened."""
    ended: ev.ClaimEnded | ev.ClaimLost | ev.ClaimRefused | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One start of the worker processes."""

    started: ev.AttemptStarted
    decision: int
    ready: ev.WorkersReady | None = None
    resumed: ev.Resumed | None = None
    stop: ev.StopAgreed | None = None
    ended: ev.AttemptEnded | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """Everything about a run that a later decision or a report depends on."""

    claims: tuple[Claim, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    decisions: tuple[Decision, ...] = ()
    lineage: tuple[ev.Checkpoint, ...] = ()
    """Usable checkpoints of the current branch, oldest first."""
    known: Mapping[str, ev.Checkpoint] = field(default_factory=dict)
    """Every checkpoint that was ever committed and recorded."""
    certified: frozenset[str] = frozenset()
    set_aside: Mapping[str, str] = field(default_factory=dict)
    """Checkpoints that must not be used again, and why; renamed by whoever finds them still in place."""
    quarantined: frozenset[str] = frozenset()
    deleted: frozenset[str] = frozenset()
    """Checkpoints that nothing needed any more; deleted by whoever finds them still in place."""
    conversions: tuple[ev.CheckpointConverted, ...] = ()
    interval: ev.IntervalChosen | None = None
    """How often a checkpoint is due, where that is chosen by what saves and failures cost."""
    rewinds: tuple[Rewind, ...] = ()
    branch: int = 0
    lr_factor: float = 1.0
    high_water_step: int = 0
    """The furthest step from which training ever went on after an incident: progress is measured against it."""
    used: Mapping[Budget, int] = field(default_factory=dict)
    incidents: tuple[ev.LossIncident, ...] = ()
    near_misses: tuple[ev.NearMiss, ...] = ()
    rejected: tuple[str, ...] = ()
    """Checkpoints that could not be verified or loaded."""
    undecided: ev.LossIncident | ev.CheckpointRejected | ev.AttemptEnded | None = None
    """Something that happened and about which nothing was decided yet."""
    pending: Decision | None = None
    """A decision that nobody has carried out yet."""
    skipped_steps: int = 0
    replay_differences: tuple[ev.ReplayDiffers, ...] = ()
    saves_failed: int = 0
    save_failures: tuple[ev.SaveFailed, ...] = ()
    faults: tuple[ev.FaultInjected, ...] = ()
    finished: ev.RunFinished | None = None
    disagreements: tuple[str, ...] = ()
    cancelled_by: int | None = None
    """The command that cancelled the run, unless that was lifted; 0 is a cancellation in Slurm itself."""
    binding_after: int = 0
    """What was decided up to here was lifted by a resubmission."""
    lifted_after: int = -1
    """A cancellation in Slurm before any later decision than this was lifted by a resubmission."""
    crashes: tuple[tuple[str, str, int], ...] = ()
    """Fingerprint and node of each crash since a person last sent the run, and the step of the newest checkpoint."""

    @property
    def cancelled(self) -> bool:
        """Whether a person ended the run for good."""
        return self.cancelled_by is not None

    @property
    def stop(self) -> Decision | None:
        """The decision that ended the run for good, if one did."""
        if self.decisions and self.decisions[-1].action == "stop" and self.decisions[-1].number > self.binding_after:
            return self.decisions[-1]
        return None

    @property
    def resubmitted(self) -> bool:
        """Whether a person sent the run again and nothing was decided since."""
        return bool(self.decisions) and self.decisions[-1].number <= self.binding_after

    @property
    def next_decision(self) -> int:
        """Number of the next decision; they only go up."""
        return self.decisions[-1].number + 1 if self.decisions else 1

    @property
    def next_attempt(self) -> int:
        """Number of the next attempt."""
        return self.attempts[-1].started.attempt + 1 if self.attempts else 1

    @property
    def plan_decision(self) -> Decision:
        """The newest decision with a plan: what an attempt that starts now must follow."""
        return next(d for d in reversed(self.decisions) if d.plan is not None)

    def is_void(self, name: str, claim: int) -> bool:
        """Tell whether a checkpoint that attempts of `claim` wrote was not there yet when a newer claim was opened."""
        newer = (c for c in self.claims if c.opened and c.request.claim > claim)
        return any(name not in c.committed for c in newer)

    def checkpoint(self, name: str) -> ev.Checkpoint:
        """Return a usable checkpoint of the current branch by its name."""
        return next(c for c in self.lineage if c.name == name)


def fold(events: Iterable[ev.Event], run: int = 0) -> History:
    """Fold the events of run number `run` of its submission into its history."""
    history = History()
    for event in events:
        history = apply(history, event, run)
    return history


def apply(history: History, event: ev.Event, run: int = 0) -> History:  # noqa: C901, PLR0911, PLR0912, PLR0915
    """Return the history after one more event."""
    match event:
        case ev.ClaimRequested():
            return replace(history, claims=(*history.claims, Claim(request=event)))
        case ev.ClaimOpened():
            return _claim(history, event.claim, opened=event.committed)
        case ev.ClaimRefused() | ev.ClaimLost():
            return _claim(history, event.claim, ended=event)
        case ev.ClaimEnded():
            history = _claim(history, event.claim, ended=event)
            if history.pending is not None and history.pending.action == "stop":
                history = replace(history, pending=None)
            return history
        case ev.AttemptStarted():
            attempt = Attempt(started=event, decision=history.decisions[-1].number if history.decisions else 0)
            return replace(history, attempts=(*history.attempts, attempt), pending=None)
        case ev.AttemptEnded():
            return _ended(_attempt(history, event.attempt, ended=event), event)
        case ev.WorkersReady():
            return _attempt(history, event.attempt, ready=event)
        case ev.Resumed():
            history = _attempt(history, event.attempt, resumed=event)
            if history.pending is not None and history.pending.action == "rollback":
                history = replace(history, pending=None)
            return history
        case ev.StopAgreed():
            return _attempt(history, event.attempt, stop=event)
        case ev.LossIncident():
            return replace(history, incidents=(*history.incidents, event), undecided=event)
        case ev.NearMiss():
            return replace(history, near_misses=(*history.near_misses, event))
        case ev.StepSkipped():
            return replace(history, skipped_steps=history.skipped_steps + 1)
        case ev.CheckpointCommitted() | ev.CheckpointAdopted():
            return _commit(history, event.checkpoint)
        case ev.CheckpointCertified():
            return replace(history, certified=history.certified | {event.name})
        case ev.CheckpointRejected():
            history = _set_aside(history, {event.name: f"rejected: {event.reason}"})
            # What is undecided already will be decided without this checkpoint; only else is it news by itself.
            return replace(history, undecided=history.undecided or event, rejected=(*history.rejected, event.name))
        case ev.CheckpointQuarantined():
            history = _set_aside(history, {event.name: event.reason})
            return replace(history, quarantined=history.quarantined | {event.name})
        case ev.CheckpointDeleted():
            lineage = tuple(c for c in history.lineage if c.name != event.name)
            return replace(history, lineage=lineage, deleted=history.deleted | {event.name})
        case ev.CheckpointConverted():
            return replace(history, conversions=(*history.conversions, event))
        case ev.IntervalChosen():
            return replace(history, interval=event)
        case ev.SaveFailed():
            return replace(
                history,
                saves_failed=history.saves_failed + 1,
                save_failures=(*history.save_failures, event),
            )
        case ev.ReplayDiffers():
            return replace(history, replay_differences=(*history.replay_differences, event))
        case ev.FaultInjected():
            return replace(history, faults=(*history.faults, event))
        case ev.RunFinished():
            return replace(history, finished=event)
        case ev.Decided():
            return _decided(history, event.decision)
        case ev.Disagreement():
            return replace(history, disagreements=(*history.disagreements, event.message))
        case ev.CancelRequested():
            return replace(history, cancelled_by=event.operator) if run in event.runs else history
        case ev.JobCancelled():
            # As if it were older than every command: whoever lifts any cancellation lifts this one. Nothing orders
            # commands and supervisors but the decisions that they knew of.
            known = history.decisions[-1].number if history.decisions else 0
            return (
                history if known <= history.lifted_after else replace(history, cancelled_by=history.cancelled_by or 0)
            )
        case ev.ResubmitRequested():
            if run not in event.runs:
                return history
            after = event.after.get(str(run), 0)
            history = replace(history, binding_after=max(history.binding_after, after))
            # A cancellation that the command had not seen stays in force.
            if event.lifts is None:
                return history
            if history.cancelled_by is not None and history.cancelled_by <= event.lifts:
                history = replace(history, cancelled_by=None)
            return replace(history, lifted_after=max(history.lifted_after, after))
        case ev.Submitted() | ev.StopRequested() | ev.OperatorOutcome() | ev.Unknown():
            return history


def _claim(
    history: History,
    number: int,
    *,
    opened: tuple[str, ...] | None = None,
    ended: ev.ClaimEnded | ev.ClaimLost | ev.ClaimRefused | None = None,
) -> History:
    def change(claim: Claim) -> Claim:
        if claim.request.claim != number:
            return claim
        claim = replace(claim, ended=ended or claim.ended)
        return claim if opened is None else replace(claim, opened=True, committed=opened)

    return replace(history, claims=tuple(change(claim) for claim in history.claims))


def _attempt(history: History, number: int, **changes: object) -> History:
    def change(attempt: Attempt) -> Attempt:
        return replace(attempt, **changes) if attempt.started.attempt == number else attempt  # type: ignore[arg-type]

    return replace(history, attempts=tuple(change(attempt) for attempt in history.attempts))


def _commit(history: History, checkpoint: ev.Checkpoint) -> History:
    known_before = checkpoint.name in history.known
    history = replace(history, known={**history.known, checkpoint.name: checkpoint}, saves_failed=0)
    if known_before or checkpoint.name in history.set_aside or checkpoint.name in history.deleted:
        return history
    if checkpoint.branch != history.branch:
        return _set_aside(history, {checkpoint.name: "of an abandoned branch"})
    lineage = (*history.lineage, checkpoint)
    if len(lineage) > 1 and lineage[-2].step > checkpoint.step:
        lineage = tuple(sorted(lineage, key=lambda c: (c.step, c.save_number)))
    return replace(history, lineage=lineage)


def _set_aside(history: History, names: Mapping[str, str]) -> History:
    if not names:
        return history
    return replace(
        history,
        lineage=tuple(c for c in history.lineage if c.name not in names),
        set_aside={**names, **history.set_aside},
    )


def _cut(history: History, step: int, reason: str) -> History:
    return _set_aside(history, {c.name: reason for c in history.lineage if c.step > step})


def _decided(history: History, decision: Decision) -> History:
    history = replace(history, decisions=(*history.decisions, decision), pending=decision, undecided=None)
    if decision.action == "continue":
        return replace(history, pending=None)
    plan = decision.plan
    if plan is None:
        after = decision.suspect_after
        return history if after is None else _cut(history, after, "suspect")
    reason = "suspect" if decision.rule == "loss incident" else "of an abandoned branch"
    if decision.rule == "rehearsal":
        # A drill changes nothing: no budget, and no measure of progress.
        return history
    progress = plan.step > history.high_water_step or decision.rule == "resubmitted"
    used = {} if progress else dict(history.used)
    if decision.budget is not None:
        used[decision.budget] = decision.used
    if decision.rule == "resubmitted":
        history = replace(history, crashes=(), saves_failed=0)
    return replace(
        _cut(history, plan.step, reason),
        rewinds=(
            *history.rewinds,
            Rewind(position=plan.position, number=decision.number, perturb=plan.perturb, window=plan.window),
        ),
        branch=plan.branch,
        lr_factor=plan.lr_factor,
        high_water_step=max(history.high_water_step, plan.step),
        used=used,
    )


def _ended(history: History, event: ev.AttemptEnded) -> History:
    if history.pending is not None and history.pending.action == "rollback":
        # The processes that were to carry it out are gone; its plan is part of the history already.
        history = replace(history, pending=None)
    if event.cause in ("crash", "hang", "out_of_memory"):
        newest = history.lineage[-1].step if history.lineage else 0
        history = replace(history, crashes=(*history.crashes, (event.fingerprint, event.node, newest)))
    # A loss incident that rank 0 could not decide on any more outweighs how its processes ended.
    if event.cause == "decided" or isinstance(history.undecided, ev.LossIncident):
        return history
    return replace(history, undecided=event)
