"""Does a curve leave the level that its own past promises? A sequential test, for steps and for blocks of steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Literal, NamedTuple

from hpc_resume.monitor.detector import State
from hpc_resume.monitor.forecast import Expectation, Forecast

DRIFT = 2.0
"""A value this many deviations above its level is evidence neither for a rise nor against one."""

LIMIT = 6.0
"""A value this many deviations up is out of bounds, and one that is higher still counts no more."""

ENOUGH = 11.0
"""So much evidence confirms a rise: far more than two values that are out of bounds can give."""

SETTLED = 48
"""A rise that is still not back after so many values, or more where patience is longer, is the new level."""

LOWER_LEVEL = 8
"""So many values in a row that are out of bounds downward are the new level; fewer were easy batches."""

HOVERING = 3.0
"""A loss of fewer deviations than this hovers about zero: it has no level that it could leave."""

DESCENDED = 6.0
"""A loss that once was so many deviations higher has learned something that it can lose again."""

FAR_FROM_ZERO = 60.0
"""And one of so many deviations has a level that it can leave, whether it ever fell or not."""

LARGEST = 1e150
"""Larger values are taken for this one, so that no difference of two is infinite."""

Outcome = Literal["calm", "watched", "confirmed", "back", "settled"]


class Point(NamedTuple):
    """One value of a curve, and where it belongs."""

    step: int
    start_position: int
    value: float


@dataclass(kw_only=True, slots=True)
class Excursion:
    """Values above their level, from the first of them on."""

    onset_step: int
    onset_position: int
    level: float
    noise: float
    evidence: float = 0.0
    values: int = 0
    newest: float = 0.0
    """Deviations of the newest value."""

    peak: float = 0.0
    """The highest value."""

    confirmed: bool = False

    @property
    def limit(self) -> float:
        """The value that is out of bounds."""
        return self.level + LIMIT * self.noise

    @property
    def height(self) -> float:
        """Deviations of the highest value."""
        return min((self.peak - self.level) / self.noise, LARGEST)


class RiseTest:
    """Page's cumulative sum (1954) of how far values lie above what `Forecast` expects, in its deviations.

    Each value adds its deviations, at most `LIMIT`, less `DRIFT`; below nothing the sum starts anew. So a lone high
    value proves little however high it is, a few in a row prove a rise, and many slightly high ones prove it too.
    While there is evidence, level and noise stay what they were, and no value enters the forecast: a rise does not
    widen its own bounds. What was no confirmed rise enters it afterwards, so that a curve with many lone high values
    is known to be one. Values that are out of bounds downward, easy batches, don't enter it either, unless they are
    so many in a row that the level has sunk: what follows them is no rise.
    """

    def __init__(self, *, window: int, known: int, noise_of: Callable[[Expectation], float], patience: int = 0) -> None:
        """Judge once `known` errors of the forecast over `window` values are known.

        What is still up after `SETTLED` values, or twice the `patience`, is the new level. `noise_of` says what to
        take for the noise, infinity for "can't be judged".
        """
        self._known = known
        self._settled_after = max(SETTLED, 2 * patience)
        self._noise_of = noise_of
        self._forecast = Forecast(window)
        self._held: list[float] = []
        self._low: list[float] = []
        self.excursion: Excursion | None = None
        """What is being watched; after "back" and "settled" None."""

        self.last: Excursion | None = None
        """What was watched until now."""

    def observe(
        self, point: Point, *, enough: float = ENOUGH, gross: float = math.inf, widened: float = 1.0
    ) -> Outcome:
        """Take in the next value.

        `enough` evidence confirms, or one value that is `gross` deviations up; bounds that open now are `widened` times
        as far.
        """
        value = max(-LARGEST, min(LARGEST, point.value))
        excursion = self.excursion or self._opened(point, value, widened)
        if excursion is None:
            return "calm"
        # Noise may be so small that the quotient is infinite, which no JSON could hold.
        excursion.newest = max(-LARGEST, min(LARGEST, (value - excursion.level) / excursion.noise))
        evidence = excursion.evidence + min(excursion.newest, LIMIT) - DRIFT
        if excursion.newest >= gross:
            evidence = max(evidence, enough)
        if evidence <= 0.0:
            return self._closed(value)
        if excursion.values == 0 or value > excursion.peak:
            excursion.peak = value
        excursion.values += 1
        self._held.append(value)
        self.excursion = excursion
        if not excursion.confirmed and evidence >= enough:
            excursion.confirmed = True
            # What a long rise piled up must not hide that it is over.
            excursion.evidence = LIMIT
            return "confirmed"
        excursion.evidence = min(evidence, LIMIT) if excursion.confirmed else evidence
        return self._settled() if excursion.values >= self._settled_after else "watched"

    def _opened(self, point: Point, value: float, widened: float) -> Excursion | None:
        """Begin an excursion with a value that is high; take in any other."""
        if self._forecast.known < self._known:
            self._forecast.take(value)
            return None
        expected = self._forecast.expect()
        noise = self._noise_of(expected) * widened
        # Without any noise it isn't known what is much.
        is_judged = 0.0 < noise < LARGEST
        if is_judged and value - expected.level > DRIFT * noise:
            self._low = []
            return Excursion(
                onset_step=point.step, onset_position=point.start_position, level=expected.level, noise=noise
            )
        self._low.append(value)
        if is_judged and expected.level - value > LIMIT * expected.noise and len(self._low) < LOWER_LEVEL:
            return None
        lows, self._low = self._low, []
        for past in lows if len(lows) >= LOWER_LEVEL else [value]:
            self._forecast.take(past)
        return None

    def _closed(self, value: float) -> Outcome:
        watched, self.last, self.excursion = self.excursion, self.excursion, None
        held = [] if watched is not None and watched.confirmed else self._held
        for past in (*held, value):
            self._forecast.take(past)
        self._held = []
        return "calm" if watched is None else "back"

    def forget(self) -> None:
        """Drop the evidence: what it was about is not going to be trained on again, or not so."""
        if self.excursion is None:
            return
        confirmed = self.excursion.confirmed
        self.last, self.excursion = self.excursion, None
        for past in () if confirmed else self._held:
            self._forecast.take(past)
        self._held = []

    def _settled(self) -> Outcome:
        self.last, self.excursion = self.excursion, None
        for past in self._held[len(self._held) // 2 :]:
            self._forecast.take(past)
        self._held = []
        return "settled"

    def state_dict(self) -> State:
        """Everything that later outcomes depend on."""
        return {
            "forecast": self._forecast.state_dict(),
            "held": list(self._held),
            "low": list(self._low),
            "excursion": None if self.excursion is None else asdict(self.excursion),
        }

    def load_state_dict(self, state: State) -> None:
        """Go on from what `state_dict` returned."""
        self._forecast.load_state_dict(state["forecast"])
        self._held = [float(value) for value in state["held"]]
        self._low = [float(value) for value in state["low"]]
        self.excursion = None if state["excursion"] is None else Excursion(**state["excursion"])
