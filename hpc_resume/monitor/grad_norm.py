"""Gradient norms that are far too large: a second witness to a spike."""

from __future__ import annotations

import math

from hpc_resume.monitor.detector import State
from hpc_resume.monitor.window import Window

WINDOW = 64
"""So many norms tell what is usual."""

KNOWN = 16
"""So many of them must be known before one is judged."""

DEVIATIONS = 6.0
TIMES = 2.0

ACCEPTED = 64
"""So many anomalous ones in a row are the new usual."""


class GradNormWitness:
    """Tell whether a gradient norm lies far above those before it.

    Far above is `DEVIATIONS` robust deviations of the last `WINDOW` norms, and `TIMES` their median; norms are those
    before clipping and have the unit of the framework. The rule is ZClip's (Kumar et al. 2025) with the median in the
    place of a mean that outliers pull along. A witness makes no verdict of its own: hard batches have large gradients
    too, and norms drift for good reasons. It can't see gradients that grow slowly.
    """

    def __init__(self) -> None:
        self._norms = Window(WINDOW)
        self._anomalous = 0

    def observe(self, norm: float | None) -> bool:
        """Take in one norm, None where there is none, and tell whether it is far too large."""
        if norm is None or not math.isfinite(norm):
            return False
        if len(self._norms) >= KNOWN:
            median = self._norms.median()
            if norm > max(median + DEVIATIONS * self._norms.deviation(median), TIMES * median):
                self._anomalous += 1
                if self._anomalous < ACCEPTED:
                    return True
                # So many in a row are how it is now.
                self._norms = Window(WINDOW)
        self._anomalous = 0
        self._norms.add(norm)
        return False

    def state_dict(self) -> State:
        """Everything that later answers depend on."""
        return {"norms": self._norms.to_list(), "anomalous": self._anomalous}

    def load_state_dict(self, state: State) -> None:
        """Go on from what `state_dict` returned."""
        self._norms = Window(WINDOW, [float(norm) for norm in state["norms"]][-WINDOW:])
        self._anomalous = state["anomalous"]
