"""The recent healthy losses, with their median and spread at hand."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from typing import NamedTuple

NORMAL_SCALE = 1.4826
"""Makes the median absolute deviation of normal noise equal to its standard deviation."""


class Point(NamedTuple):
    """One healthy step."""

    step: int
    start_position: int
    loss: float


class Baseline:
    """The last healthy losses, in their order and sorted.

    The sorted copy makes a step cost O(log n) comparisons and one move of memory, cheap enough to look at every
    step.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._points: deque[Point] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._points)

    @property
    def newest(self) -> Point | None:
        """The newest point, None if there is none."""
        return self._points[-1] if self._points else None

    def add(self, point: Point) -> None:
        """Take in a finite loss; the oldest one leaves when the baseline is full."""
        if len(self._points) == self._size:
            self._forget(self._points.popleft())
        self._points.append(point)
        insort(self._sorted, point.loss)

    def drop_newest(self) -> Point:
        """Take the newest point out again."""
        point = self._points.pop()
        self._forget(point)
        return point

    def _forget(self, point: Point) -> None:
        del self._sorted[bisect_left(self._sorted, point.loss)]

    def median(self) -> float:
        """Median of the losses; there must be one at least."""
        values, half = self._sorted, len(self._sorted) // 2
        if len(values) % 2:
            return values[half]
        # Halved before they are added, because the sum of two huge losses would be infinite.
        return values[half - 1] / 2 + values[half] / 2

    def deviation(self, median: float) -> float:
        """Median absolute deviation from `median`, scaled to the standard deviation of normal noise.

        The k losses nearest to the median are neighbours in the sorted list, and the k-th smallest deviation is
        the larger one of their two ends; so the right neighbours are found by bisection, without looking at every
        loss. Of an even number of deviations it takes the upper middle one.
        """
        values = self._sorted
        reach = len(values) // 2
        low, high = 0, len(values) - 1 - reach
        while low < high:
            middle = (low + high) // 2
            if median - values[middle] > values[middle + reach] - median:
                low = middle + 1
            else:
                high = middle
        nearest = max(median - values[low], values[low + reach] - median)
        if low > 0:
            nearest = min(nearest, max(median - values[low - 1], values[low - 1 + reach] - median))
        return NORMAL_SCALE * nearest

    def to_list(self) -> list[list[float]]:
        """The points, oldest first, as `[step, start_position, loss]`."""
        return [list(point) for point in self._points]

    @classmethod
    def from_list(cls, size: int, rows: list[list[float]]) -> Baseline:
        """Build a baseline from `to_list`; of more than `size` points the newest are taken."""
        baseline = cls(size)
        for step, start_position, loss in rows[-size:]:
            baseline.add(Point(int(step), int(start_position), float(loss)))
        return baseline
