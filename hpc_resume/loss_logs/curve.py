"""A loss curve as a log has it, in the steps of the training that survived."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from hpc_resume.errors import ConfigError


class NoCurveError(ConfigError):
    """A file can be read, but holds no training loss in any format that is known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedPoint:
    """What a log says about one optimizer step, or about those since the point before."""

    step: int
    """Number of the (last) optimizer step."""

    loss: float
    """As logged: of this step, or a mean over the steps since the point before. NaN and infinity are values."""

    grad_norm: float | None = None
    """Gradient norm, None where it is not logged."""

    loss_scale: float | None = None
    """What the loss is multiplied by in fp16, None where it is not logged."""

    skipped: bool = False
    """Every update since the point before was left out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LossCurve:
    """The loss of one training; steps rise from point to point, and there is one point at least."""

    name: str
    """Where it comes from: a path, and what else tells it from others in the same file."""

    points: tuple[LoggedPoint, ...]

    notes: tuple[str, ...] = ()
    """What a reader of the result must know about how it was read, a sentence each."""

    @property
    def interval(self) -> int:
        """Usual distance of two points in steps, their median; 1 for a single point."""
        distances = [after.step - before.step for before, after in pairwise(self.points)]
        return statistics.median_low(distances) if distances else 1


def joined(points: Iterable[LoggedPoint]) -> tuple[tuple[LoggedPoint, ...], int]:
    """Return the points of the training that survived, and how many later ones replaced.

    Where the step goes back, a training was resumed and went over these steps again: what it logged then replaces
    everything from there on, as it did in the weights.
    """
    kept: list[LoggedPoint] = []
    replaced = 0
    for point in points:
        while kept and kept[-1].step >= point.step:
            kept.pop()
            replaced += 1
        kept.append(point)
    return tuple(kept), replaced


def make_curve(name: str, points: Iterable[LoggedPoint], notes: Iterable[str] = ()) -> LossCurve | None:
    """Join points to a curve, with a note if some were replaced; None if there is no point."""
    kept, replaced = joined(points)
    if not kept:
        return None
    said = list(notes)
    if replaced:
        said.append(
            f"the step goes back or repeats: {replaced} points were replaced by later ones of the same steps, as when "
            "a training was resumed; if it is several trainings in one log, split it to see the earlier ones"
        )
    return LossCurve(name=name, points=kept, notes=tuple(said))
