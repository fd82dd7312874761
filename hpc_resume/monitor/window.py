"""The last so many values, with their robust statistics at hand."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Sequence
from decimal import Decimal
from itertools import pairwise

NORMAL_SCALE = 1.4826
"""Makes the median absolute deviation of normal noise equal to its standard deviation."""

TAIL = 0.95
"""The upper tail is judged at this quantile."""

NORMAL_TAIL = 1.645
"""So many standard deviations lie between the median of normal noise and its `TAIL` quantile."""


def median(ordered: Sequence[float]) -> float:
    """Median of values in ascending order; there must be one at least."""
    half = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[half]
    # Halved before they are added, because the sum of two huge values would be infinite.
    return ordered[half - 1] / 2 + ordered[half] / 2


def last_digit(value: float) -> float:
    """Return the weight of the last decimal digit with which a value is written: 0.0001 for 0.0328; 0 for 0."""
    exponent = Decimal(repr(value)).as_tuple().exponent
    return 10.0**exponent if value != 0.0 and isinstance(exponent, int) else 0.0


class Window:
    """The last `size` finite values, in their order and sorted.

    The sorted copy makes a step cost O(log n) comparisons and one move of memory, cheap enough to look at every step.
    """

    def __init__(self, size: int, values: Iterable[float] = ()) -> None:
        self._size = size
        self._values: deque[float] = deque()
        self._sorted: list[float] = []
        for value in values:
            self.add(value)

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, value: float) -> None:
        """Take in a finite value; the oldest one leaves when the window is full."""
        if len(self._values) == self._size:
            del self._sorted[bisect_left(self._sorted, self._values.popleft())]
        self._values.append(value)
        insort(self._sorted, value)

    def median(self) -> float:
        """Median of the values; there must be one at least."""
        return median(self._sorted)

    def deviation(self, median: float) -> float:
        """How far values usually lie above `median`, as the standard deviation of normal noise with the same look.

        The larger one of the median absolute deviation, which ignores up to half of the values, and the distance of
        the `TAIL` quantile: what is skewed upward, as losses with hard batches are, is noisier than its middle shows.
        """
        values = self._sorted
        tail = values[min(len(values) - 1, int(TAIL * len(values)))]
        middle = self._middle_deviation(median)
        # More than half of them equal: the values were rounded, and differ by that at least.
        rounding = min((b - a for a, b in pairwise(values) if b > a), default=0.0) if middle == 0.0 else 0.0
        return max(middle, rounding, (tail - median) / NORMAL_TAIL)

    def _middle_deviation(self, median: float) -> float:
        """Return the scaled median absolute deviation; of an even number of deviations the upper middle one.

        The k values nearest to the median are neighbours in the sorted list, and the k-th smallest deviation is the
        larger one of their two ends; so they are found by bisection, without looking at every value.
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

    def to_list(self) -> list[float]:
        """The values, oldest first."""
        return list(self._values)
