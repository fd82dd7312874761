"""What the next value of a noisy falling curve should be, from those before it."""

from __future__ import annotations

from typing import NamedTuple

from hpc_resume.monitor.detector import State
from hpc_resume.monitor.window import Window, last_digit

SHORT = 4
LONG = 16
FEW_VALUES = 6.0
"""How much wider few known values make the noise: (1 + FEW_VALUES / known) times."""


class Expectation(NamedTuple):
    """What the next value should be."""

    level: float
    noise: float
    """Standard deviation of the values about the level, if they were normal noise."""


class Forecast:
    """Predicts the next value by a running median, and learns its own errors.

    Where the loss falls steeply that is the lower one of a short and a long median: the short one follows a loss that
    falls, the long one does not follow a loss that begins to rise. Elsewhere it is the long one, which easy batches
    do not draw down. The median of the recent errors is added, so a steady slope is no error; their robust deviation is
    the noise. Nothing here assumes a unit: all values ten times as large give ten times the expectation.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._short = Window(SHORT)
        self._long = Window(LONG)
        self._errors = Window(window)

    @property
    def known(self) -> int:
        """How many errors of its own predictions it knows; the first is that of value `SHORT` + 1."""
        return len(self._errors)

    def expect(self) -> Expectation:
        """Return what the next value should be; it must know an error."""
        bias = self._errors.median()
        noise = self._errors.deviation(bias) * (1.0 + FEW_VALUES / len(self._errors))
        if noise == 0.0:
            # All alike: they were rounded, and may differ by a unit of their last digit.
            noise = last_digit(self._long.median())
        # Where the loss does not fall steeply, easy batches among the last few must not draw the level down.
        level = self._long.median() if bias > -noise else min(self._short.median(), self._long.median())
        return Expectation(level + bias, noise)

    def take(self, value: float) -> None:
        """Take in the next value."""
        if len(self._short) == SHORT:
            self._errors.add(value - min(self._short.median(), self._long.median()))
        self._short.add(value)
        self._long.add(value)

    def state_dict(self) -> State:
        """Everything that later expectations depend on."""
        return {"last": self._long.to_list(), "errors": self._errors.to_list()}

    def load_state_dict(self, state: State) -> None:
        """Go on from what `state_dict` returned."""
        last = [float(value) for value in state["last"]]
        self._short = Window(SHORT, last[-SHORT:])
        self._long = Window(LONG, last[-LONG:])
        self._errors = Window(self._window, [float(error) for error in state["errors"]][-self._window :])
