"""A curve of any length as few points as a picture has pixels, without losing a spike."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from hpc_resume.loss_logs.curve import LoggedPoint

Line = list[tuple[int, float]]
"""Step and loss of each point to draw; NaN where the line is broken."""

_LARGEST = 1e100
"""What is drawn of anything larger; axes can't be laid out near the largest float."""

_LOG_FROM_RATIO = 30.0
"""A curve spans that much before a logarithmic axis shows more of it than a linear one does."""

_SYMLOG_FROM_RATIO = 100.0

_START = 50
"""One part in so many of a curve is its start."""

_LONG = 500
_FALL = 3.0
"""The start spans so many times more than all the rest before the axis is cut."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """How the axis of the loss is divided."""

    kind: Literal["linear", "log", "symlog"]
    linear_up_to: float = 0.0
    """Size of a loss beyond which a `symlog` axis is logarithmic."""

    bounds: tuple[float, float] | None = None
    """What the axis shows, where the first losses are higher than that; None where it shows all."""


def thinned(points: Sequence[LoggedPoint], columns: int) -> Line:
    """Return the smallest and the largest loss in each of so many columns of equal width, in the order they had.

    So a spike of one step stays as high as it was. The line is broken where a loss is not finite.
    """
    line: Line = []
    for bucket in _columns(points, columns):
        finite = [point for point in bucket if math.isfinite(point.loss)]
        if finite:
            low, high = min(finite, key=_loss), max(finite, key=_loss)
            line += [
                (point.step, drawable(point.loss))
                for point in sorted({low.step: low, high.step: high}.values(), key=_step)
            ]
        if len(finite) < len(bucket):
            line.append((bucket[-1].step, math.nan))
    return line


def levels(points: Sequence[LoggedPoint], columns: int) -> Line:
    """Return the median loss in each of so many columns of equal width, at its middle step."""
    line: Line = []
    for bucket in _columns(points, columns):
        finite = [point.loss for point in bucket if math.isfinite(point.loss)]
        middle = bucket[len(bucket) // 2].step
        line.append((middle, drawable(statistics.median_low(finite)) if finite else math.nan))
    return line


def _columns(points: Sequence[LoggedPoint], columns: int) -> Iterable[list[LoggedPoint]]:
    if not points:
        return []
    first = points[0].step
    span = max(1, points[-1].step - first + 1)
    return [list(bucket) for _, bucket in groupby(points, key=lambda point: (point.step - first) * columns // span)]


def _loss(point: LoggedPoint) -> float:
    return point.loss


def _step(point: LoggedPoint) -> int:
    return point.step


def drawable(loss: float) -> float:
    """Return a loss as it is drawn; NaN stays NaN."""
    return max(-_LARGEST, min(_LARGEST, loss))


def missing_stretches(points: Sequence[LoggedPoint]) -> list[tuple[int, int]]:
    """Return first and last step of each stretch of points whose loss is NaN or infinite."""
    stretches = []
    for is_finite, stretch in groupby(points, key=lambda point: math.isfinite(point.loss)):
        if not is_finite:
            steps = [point.step for point in stretch]
            stretches.append((steps[0], steps[-1]))
    return stretches


def _bounds(losses: Sequence[float]) -> tuple[float, float] | None:
    """Return what to show of a long curve that falls so far at its start that the rest would be one line."""
    later = losses[len(losses) // _START :]
    if len(losses) < _LONG or not later:
        return None
    low, high = min(losses), max(later)
    span = high - low
    return (low - 0.05 * span, high + 0.15 * span) if max(losses) - low > _FALL * span > 0 else None


def scale_of(points: Iterable[LoggedPoint]) -> Scale:
    """Choose the scale at which a curve can be seen whole: logarithmic where it spans orders of magnitude."""
    in_order = [drawable(point.loss) for point in points if math.isfinite(point.loss)]
    losses = sorted(in_order)
    if not losses:
        return Scale(kind="linear")
    low, high = losses[0], losses[-1]
    if low > 0:
        if high / low > _LOG_FROM_RATIO:
            return Scale(kind="log")
        return Scale(kind="linear", bounds=_bounds(in_order))
    # Zeros and negative losses: what nearly all losses are within stays linear, and is enough of the picture.
    most = max(abs(losses[len(losses) // 20]), abs(losses[-1 - len(losses) // 20]))
    if most > 0 and max(abs(low), abs(high)) > _SYMLOG_FROM_RATIO * most:
        return Scale(kind="symlog", linear_up_to=most)
    return Scale(kind="linear")
