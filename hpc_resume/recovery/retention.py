"""Which checkpoints a run can do without, so that the way back always exists.

What may still be asked for follows from the rules. A loss incident goes on from a certified checkpoint before its
onset: of those that the rewinds before it have left, the n-th newest for the n-th incident in a row without progress.
The onset lies at most the monitor's horizon before the newest certified one, as nothing is certified while an anomaly
is being watched. So the ladder is walked down from there, one rung for each incident that the budget allows, and one
for the incident that ends the run, after which a person may send it again. All above the foot of the ladder is kept,
also what is not certified yet; so the n-th newest stays the n-th newest.

Whatever happens later stays above that foot. An incident after progress leads to above the first rung of every ladder
before it, and those in a row after it to above the rungs that follow. This takes for granted that training that went
back saves as often as the settings say: hence a rung is as many intervals deep as it counts checkpoints, or deeper
where fewer were saved. A damaged checkpoint takes one from the ladder.

A zombie, a rank 0 that was stopped between its look at the claims and its deletion, does no harm by what it then does.
It has recorded the deletion before it looked. If the newer claim has read that, it does the same itself, and the name
is used by nobody. If not, the record is without effect, but what is deleted lies below the foot of a ladder in a
history that the newer claim goes on with, so it is not asked for; and if it were, it would be found missing like any
damaged checkpoint, and the next older one would be loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hpc_resume.recovery import events as ev
from hpc_resume.recovery.history import History


@dataclass(frozen=True, kw_only=True, slots=True)
class Retention:
    """What is kept of a run's checkpoints."""

    keep_last: int
    """So many of the newest, whatever else is kept."""

    keep_every_steps: int | None
    """Certified ones at multiples of this stay for good."""

    keep_quarantined: int
    """So many of the newest that were set aside."""

    loss_budget: int
    """So many loss incidents in a row are answered by a rewind."""

    reach_steps: int
    """So far before the newest certified checkpoint a rewind may have to start looking: horizon and margin."""

    interval_steps: int | None
    """Steps between two saves; None takes what was last chosen."""

    @property
    def rungs(self) -> tuple[int, ...]:
        """How many checkpoints each incident in a row goes back; the last one is that which ends the run."""
        return (*range(1, self.loss_budget + 1), 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Expendable:
    """A checkpoint that nothing will ask for any more, and why."""

    name: str
    reason: str


def expendable(history: History, keep: Retention) -> tuple[Expendable, ...]:
    """Return what can be deleted now, oldest first: only what was recorded as committed, and nothing twice.

    While something is undecided, or a decision not carried out, that is nothing.
    """
    if history.undecided is not None or history.pending is not None:
        return ()
    used = in_use(history)
    found = (*_below_the_ladder(history, keep), *_old_quarantined(history, keep))
    return tuple(one for one in found if one.name not in used)


def in_use(history: History) -> frozenset[str]:
    """Return what the running attempt was loaded from, or will be."""
    plan = next((d.plan for d in reversed(history.decisions) if d.plan is not None), None)
    resumed = history.attempts[-1].resumed if history.attempts else None
    names = (plan.checkpoint if plan else None, resumed.checkpoint if resumed else None)
    return frozenset(name for name in names if name is not None)


def spent_conversions(history: History) -> tuple[str, ...]:
    """Return the checkpoints whose converted copies nobody needs after a commit, which any later load prefers.

    They can be made again, so that is not recorded.
    """
    return () if history.pending is not None else tuple(dict.fromkeys(c.name for c in history.conversions))


def foot_of_the_ladder(history: History, keep: Retention) -> int | None:
    """Return the step from which on everything is kept; None if that is everything, as nothing is certified."""
    steps = [c.step for c in history.lineage if c.name in history.certified]
    if not steps:
        return None
    # What was saved in the middle of an anomaly, or soon after one, has it in its monitor's memory.
    reach = keep.reach_steps + max((miss.step - miss.onset_step for miss in history.near_misses), default=0)
    interval = keep.interval_steps or (history.interval.steps if history.interval else 0)
    foot = steps[-1]
    for depth in keep.rungs:
        foot -= reach
        steps = [step for step in steps if step <= foot]
        if len(steps) < depth:
            return None
        foot = min(foot - depth * interval, steps[-depth])
    return foot


def _below_the_ladder(history: History, keep: Retention) -> Iterator[Expendable]:
    foot = foot_of_the_ladder(history, keep)
    if foot is None:
        return
    for checkpoint in history.lineage[: -keep.keep_last]:
        if checkpoint.step < foot and not _is_milestone(history, keep, checkpoint):
            yield Expendable(name=checkpoint.name, reason=f"no rewind leads to before step {foot} any more")


def _is_milestone(history: History, keep: Retention, checkpoint: ev.Checkpoint) -> bool:
    every = keep.keep_every_steps
    return every is not None and checkpoint.step % every == 0 and checkpoint.name in history.certified


def _old_quarantined(history: History, keep: Retention) -> Iterator[Expendable]:
    # What was never recorded as committed, a zombie's, is left to people. Nothing that was set aside comes back.
    aside = [c for c in history.known.values() if c.name in history.quarantined - history.deleted]
    aside.sort(key=lambda checkpoint: checkpoint.save_number)
    for checkpoint in aside[: max(0, len(aside) - keep.keep_quarantined)]:
        yield Expendable(
            name=checkpoint.name, reason=f"set aside ({history.set_aside[checkpoint.name]}), and newer ones are kept"
        )
