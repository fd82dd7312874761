"""How many steps apart checkpoints should be: what saves cost, weighed against what failures lose.

What is best follows J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps" (Future
Generation Computer Systems 22, 2006), whose leading term is Young's (Communications of the ACM 17, 1974). Only the time
that training stands still counts as a save's cost. That a checkpoint written in the background is of use only once it
is committed costs the same at any interval, so it does not change which one is best.

Three bounds hold besides:

- No longer than `checkpoints.certify_after_steps`. A loss incident goes back to the newest certified checkpoint. That
  one is at least so many steps old, and up to an interval older; so with this bound the interval at most doubles what
  an incident loses anyway. The formula knows nothing of loss incidents: failures alone may ask for hours.
- Saves take at most 5% of the time. This bound is kept also where it asks for more than the one before.
- No shorter than a save takes in all: the next one would only wait for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from hpc_resume.recovery.events import Cause, CheckpointCommitted, IntervalChosen
from hpc_resume.recovery.history import History

LARGEST_SHARE = 0.05
"""Share of the time that saves may take."""

TOLERANCE = 0.25
"""An interval in force stays while the best one differs from it by no more than this share, and the bounds allow it."""

RECENT_SAVES = 5
"""A save costs the median of so many."""

FAILURES: tuple[Cause, ...] = ("crash", "hang", "node", "out_of_memory")
"""Ends of an attempt that lose what was trained since the newest checkpoint; all others save before, or keep all."""

_DAY_S = 86_400.0
# Keep everything finite, whatever is put in; both are far beyond any training.
_MOST_STEPS = 10**9
_MOST_S = 1e12


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What this run knows of itself."""

    step_s: float
    """Seconds of one step, without saves."""

    blocked_s: float
    """Seconds that training stands still for a save."""

    save_s: float
    """Seconds from the beginning of a save to its commit."""

    trained_s: float
    """Seconds that the run was training, over all attempts."""

    failures: int
    """How often it failed meanwhile; see `failures`."""

    def __post_init__(self) -> None:
        """Refuse what no clock shows."""
        for name in ("step_s", "blocked_s", "save_s", "trained_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} is {value}; it must be a finite number of seconds, 0 or more")
        if self.step_s == 0:
            raise ValueError("step_s is 0; a step takes time")
        if self.failures < 0:
            raise ValueError(f"failures is {self.failures}; it must be 0 or more")


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """An interval, and why: what `IntervalChosen` says."""

    steps: int
    """Steps from one save to the next, 1 or more."""

    shortest: int
    """No interval below this is allowed."""

    longest: int
    """No interval above this stays in force."""

    message: str
    """For people."""

    numbers: dict[str, float] = field(default_factory=dict)
    """What it was made from; all finite."""


def choose(measured: Measured, *, failures_per_day: float, certify_after_steps: int) -> Choice:
    """Return the best interval within the bounds; `failures_per_day` is what is believed before anything failed."""
    between_s = time_between_failures(failures_per_day, measured.trained_s, measured.failures)
    best = _steps(daly_interval(measured.blocked_s, between_s), measured.step_s, up=False)
    horizon = max(1, certify_after_steps)
    affordable = _steps(measured.blocked_s * (1 / LARGEST_SHARE - 1), measured.step_s)
    possible = _steps(measured.save_s, measured.step_s)
    shortest = max(affordable, possible)
    steps = max(min(best, horizon), shortest)
    message = (
        f"every {_counted(steps)} ({_span(steps * measured.step_s)}): "
        f"a save stops training for {_span(measured.blocked_s)}, a failure is expected every {_span(between_s)} "
        f"({measured.failures} in {_span(measured.trained_s)} so far)"
    )
    if steps != best:
        message += f"; for that alone {_counted(best)} would be best, but "
        if steps == horizon:
            message += f"a loss incident should not lose more than twice the {horizon} that certify a checkpoint"
        elif steps == affordable:
            message += f"saves may take {LARGEST_SHARE:.0%} of the time at most"
        else:
            message += f"a save takes {_span(measured.save_s)} in all, and the next one waits for it"
        if steps > horizon:
            message += f"; that goes before the {horizon} that certify a checkpoint"
    return Choice(
        steps=steps,
        shortest=shortest,
        # Where the lower bounds reach the upper one, their noise must not make a choice of every save.
        longest=max(horizon, int(shortest * (1 + TOLERANCE))),
        message=message,
        numbers={
            "step_s": measured.step_s,
            "blocked_s": measured.blocked_s,
            "save_s": measured.save_s,
            "trained_s": measured.trained_s,
            "failures": measured.failures,
            "failures_per_day": failures_per_day,
            "between_failures_s": between_s,
            "best_steps": best,
            "shortest_steps": shortest,
            "horizon_steps": horizon,
        },
    )


def choose_unmeasured(certify_after_steps: int) -> Choice:
    """Return the interval of a run that has saved nothing yet: the longest that is allowed."""
    horizon = max(1, certify_after_steps)
    return Choice(
        steps=horizon,
        shortest=1,
        longest=horizon,
        message=f"every {_counted(horizon)}, as many as certify a checkpoint, until a save was measured",
        numbers={"horizon_steps": horizon},
    )


def replaces(choice: Choice, in_force: IntervalChosen) -> bool:
    """Tell whether a choice that was measured is worth a change, or, after one that was not, at least its reasons."""
    if not in_force.numbers.keys() >= choice.numbers.keys():
        return True
    if not choice.shortest <= in_force.steps <= choice.longest:
        return True
    return abs(choice.steps - in_force.steps) > TOLERANCE * in_force.steps


def failures(history: History) -> int:
    """Count the attempts of a run that failed while they trained; one that never came so far had nothing to lose."""
    return sum(
        attempt.resumed is not None and attempt.ended is not None and attempt.ended.cause in FAILURES
        for attempt in history.attempts
    )


def usual_save(commits: Sequence[CheckpointCommitted]) -> tuple[float, float]:
    """Return for how long a save stops training, and how long it takes in all: medians of the newest, in seconds."""
    newest = commits[-RECENT_SAVES:]
    return median([commit.waited_s for commit in newest]), median([c.seconds for c in newest])


def median(values: Sequence[float]) -> float:
    """Return the middle one of some values; the upper one of two."""
    return sorted(values)[len(values) // 2]


def time_between_failures(failures_per_day: float, trained_s: float, failures: int) -> float:
    """Return the seconds of training from one failure to the next that are to be expected.

    The rate has a Gamma prior that is worth one failure in the time that `failures_per_day` names; this is 1 over its
    posterior mean. So the belief counts for nothing in the long run, and no run is thought to be immortal.
    """
    if not failures_per_day > 0:
        raise ValueError(f"failures_per_day is {failures_per_day}; it must be above 0")
    return min((_DAY_S / failures_per_day + trained_s) / (1 + failures), _MOST_S)


def daly_interval(cost_s: float, between_failures_s: float) -> float:
    """Return Daly's optimum: seconds of training between two saves that cost `cost_s` each.

    His expansion holds while a save costs less than twice the time between failures; from there on he sets the
    interval to that time.
    """
    if cost_s >= 2 * between_failures_s:
        return between_failures_s
    ratio = cost_s / (2 * between_failures_s)
    return math.sqrt(2 * cost_s * between_failures_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost_s


def _steps(seconds: float, step_s: float, *, up: bool = True) -> int:
    """Return how many steps that is, at least 1: rounded up, as a lower bound must be, or to the nearest."""
    steps = min(seconds / step_s, float(_MOST_STEPS))
    return max(1, math.ceil(steps) if up else round(steps))


def _counted(steps: int) -> str:
    return f"{steps} step" if steps == 1 else f"{steps} steps"


def _span(seconds: float) -> str:
    """Write a time as people say it."""
    for size, unit in ((_DAY_S, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"
