"""The lives of a training in one log: what survived, and each stretch that a resumption or a new start replaced."""

from __future__ import annotations

import math
from collections.abc import Iterable

from hpc_resume.loss_logs.curve import LoggedPoint, LossCurve
from hpc_resume.loss_logs.numbers import counted

LEAST_POINTS = 10
"""A life of fewer points of its own is only counted, unless its loss became NaN or infinite."""

MOST_LIVES = 20
"""So many lives of one log are shown, the one that survived included: each has all that it was built on, too."""


def make_curves(name: str, points: Iterable[LoggedPoint], notes: Iterable[str] = ()) -> list[LossCurve]:
    """Return the curves of all lives in the order of the log; the last one is the training that survived.

    Where the step goes back, a training was resumed, or begins anew. What it logs from there on replaces what it goes
    over again, as it did in the weights. But what was replaced is most often the very incident for which somebody went
    back. So the training as it was until then is a curve of its own: from its first step on, since a monitor would
    have known that, too. It is empty if there is no point.

    Several values of one step in a row, of several ranks or micro batches, are no lives; the last value counts.
    """
    log = _Log()
    for point in points:
        log.take(point)
    return log.curves(name, tuple(notes))


class _Log:
    """What was logged so far: the training that lives, and those that were replaced."""

    def __init__(self) -> None:
        self._alive: list[LoggedPoint] = []
        self._own_points = 0
        """Of the training that lives, since it went back."""
        self._lost = False
        self._ended: list[tuple[tuple[LoggedPoint, ...], int]] = []
        """Points of a life, and the step at which the next one begins."""
        self._repeats = self._replaced = self._backward = self._short = self._more = 0

    def take(self, point: LoggedPoint) -> None:
        """Take in the next point of the log."""
        alive = self._alive
        if alive and point.step == alive[-1].step:
            alive[-1] = point
            self._repeats += 1
            return
        if alive and point.step < alive[-1].step:
            if self._is_late(point):
                alive[-2] = point
                self._repeats += 1
                return
            self._go_back(point.step)
        alive.append(point)
        self._own_points += 1
        self._lost = self._lost or not (math.isfinite(point.loss) or point.skipped)

    def _is_late(self, point: LoggedPoint) -> bool:
        """Tell whether ranks that write into one log have only overtaken each other."""
        alive = self._alive
        return len(alive) > 1 and point.step == alive[-2].step and 2 * self._repeats >= len(alive)

    def _go_back(self, step: int) -> None:
        self._backward += 1
        if self._own_points < LEAST_POINTS and not self._lost:
            self._short += 1
        elif len(self._ended) == MOST_LIVES - 1:
            self._more += 1
        else:
            self._ended.append((tuple(self._alive), step))
        while self._alive and self._alive[-1].step >= step:
            self._alive.pop()
            self._replaced += 1
        self._own_points, self._lost = 0, False

    def curves(self, name: str, notes: tuple[str, ...]) -> list[LossCurve]:
        if not self._alive:
            return []
        if self._repeats:
            notes += ("several values per step: the last one counts",)
        lives = [
            LossCurve(
                name=f"{name}, life {life}",
                points=points,
                notes=(*notes, f"this life ends at step {points[-1].step}; the log then goes back to step {step}"),
                life=life,
            )
            for life, (points, step) in enumerate(self._ended, start=1)
        ]
        return [*lives, LossCurve(name=name, points=tuple(self._alive), notes=(*notes, *self._said()))]

    def _said(self) -> list[str]:
        """Say what was replaced, and where that is to be seen."""
        if not self._backward:
            return []
        said = (
            f"the step goes back {counted(self._backward, 'time')}, as when a training is resumed or begins anew: "
            f"{counted(self._replaced, 'point')} were replaced by later ones of the same steps"
        )
        shown = len(self._ended)
        if shown:
            said += f", and the training as it was before is shown as life 1{f' to {shown}' if shown > 1 else ''}"
        short = f"lives of fewer than {LEAST_POINTS} points of their own, not shown: {self._short}"
        more = f"further lives, not shown: {self._more}; split the log to see them"
        return [said, *([short] if self._short else []), *([more] if self._more else [])]
