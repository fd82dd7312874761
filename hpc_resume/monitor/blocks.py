"""Many steps as one value, so that slow changes stand out from the noise."""

from __future__ import annotations

import math

from hpc_resume.monitor.detector import State
from hpc_resume.monitor.observation import Observation
from hpc_resume.monitor.rise import LARGEST, Point
from hpc_resume.monitor.settings import RATE_WINDOW_STEPS
from hpc_resume.monitor.window import median


class Blocks:
    """Medians of `size` finite losses other than 0 in a row; a lone high loss does not move them."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._losses: list[float] = []
        self._first: tuple[int, int] = (0, 0)
        self._seen = 0

    def take(self, observation: Observation) -> Point | None:
        """Take in one step; return the block that it completes, named after its first step."""
        self._seen += 1
        # Exactly 0 is no loss but the lack of one, see `spike`.
        if observation.loss == 0.0 or not math.isfinite(observation.loss):
            return None
        if not self._losses or self._seen > RATE_WINDOW_STEPS:
            # What began before a long stretch of NaN is no block any more: an onset must not lie that far back.
            self._losses, self._seen = [], 1
            self._first = (observation.step, observation.start_position)
        self._losses.append(max(-LARGEST, min(LARGEST, observation.loss)))
        if len(self._losses) < self._size:
            return None
        value = median(sorted(self._losses))
        self._losses = []
        return Point(*self._first, value)

    def state_dict(self) -> State:
        """Everything that later blocks depend on."""
        return {"losses": list(self._losses), "first": list(self._first), "seen": self._seen}

    def load_state_dict(self, state: State) -> None:
        """Go on from what `state_dict` returned."""
        self._losses = [float(loss) for loss in state["losses"]]
        step, start_position = state["first"]
        self._first = (step, start_position)
        self._seen = state["seen"]
