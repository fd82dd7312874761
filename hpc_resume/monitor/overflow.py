"""Signs that numbers have become too large for their format, where no NaN shows it."""

from __future__ import annotations

import math
from collections import deque

from hpc_resume.monitor.detector import State, Streak
from hpc_resume.monitor.observation import Observation
from hpc_resume.monitor.rise import LARGEST
from hpc_resume.monitor.settings import MonitorSettings
from hpc_resume.monitor.verdict import Verdict
from hpc_resume.monitor.window import last_digit

ZEROS = 3
"""So many losses of exactly 0 at least; and over `zero_patience_steps`."""

RECENT = 16
"""A loss that was 0, or near it, among so many before is no sign."""

NEAR = 0.1
"""Near zero is less than this share of the largest of them."""

ROUNDED = 50.0
"""A loss of fewer units of its last digit may have been rounded to 0."""

SCALES = 64
COLLAPSE = 2.0**-10
"""A loss scale that has fallen to this share of what it was in the last `SCALES` steps has collapsed."""


class OverflowDetector:
    """Watch for a loss that is stuck at exactly 0, and for a loss scale that collapses.

    A loss that was well away from zero and then is exactly 0.0, step after step, was computed from NaNs that
    something replaced: the Trainer of transformers prints a NaN loss that way. The dynamic loss scale of fp16 is
    halved whenever a gradient overflows and the step is skipped; ten halvings within 64 steps mean that no scale will
    help. What a few skipped steps say is the non-finite detector's business.

    It can't see a frozen loss at another value, nor one that fell to zero by itself before it stays there.
    """

    name = "overflow"

    def __init__(self, settings: MonitorSettings) -> None:
        self._settings = settings
        # Step and size of the last losses.
        self._sizes: deque[tuple[int, float]] = deque(maxlen=RECENT)
        self._zeros: Streak | None = None
        self._reported = False
        # Of the last steps: the scale, the step, and its start position.
        self._scales: deque[tuple[float, int, int]] = deque(maxlen=SCALES)
        self._scales_seen = 0

    @property
    def pending(self) -> bool:
        """Whether the newest loss was a zero that should not be."""
        return self._zeros is not None

    def observe(self, observation: Observation) -> Verdict | None:
        """Look at the loss and at the loss scale of one step."""
        stuck = self._stuck(observation)
        collapsed = self._collapsed(observation)
        return stuck or collapsed

    def _stuck(self, observation: Observation) -> Verdict | None:
        if not math.isfinite(observation.loss):
            return None
        if observation.loss != 0.0:
            self._zeros, self._reported = None, False
            self._sizes.append((observation.step, abs(observation.loss)))
            return None
        if self._zeros is None and not self._was_away_from_zero(observation.step):
            self._sizes.append((observation.step, 0.0))
            return None
        zeros = self._zeros = Streak.extended(self._zeros, observation)
        steps = observation.step - zeros.step + 1
        if self._reported or zeros.count < ZEROS or steps < self._settings.zero_patience_steps:
            return None
        self._reported = True
        return self._incident(
            observation,
            zeros.step,
            zeros.start_position,
            severity=steps / self._settings.zero_patience_steps,
            may_recover=False,
            message=f"the loss is exactly 0 since step {zeros.step} and was {self._sizes[-1][1]:.6g} before: a NaN "
            f"that something replaced, most likely",
            numbers={"zeros": float(zeros.count), "before": self._sizes[-1][1]},
        )

    def _was_away_from_zero(self, step: int) -> bool:
        sizes = [size for _, size in self._sizes]
        if not sizes or step - self._sizes[0][0] < min(self._settings.zero_patience_steps, RECENT):
            return False
        # A log of few digits shows a small loss as 0.
        return min(sizes) > NEAR * max(sizes) and min(sizes) >= ROUNDED * min(map(last_digit, sizes))

    def _collapsed(self, observation: Observation) -> Verdict | None:
        scale = observation.loss_scale
        if scale is None or not 0.0 < scale < float("inf"):
            return None
        self._scales_seen += 1
        # The search for the first scale begins far too high and is no sign.
        if self._scales_seen <= SCALES:
            return None
        self._scales.append((scale, observation.step, observation.start_position))
        highest = max(known for known, _, _ in self._scales)
        if scale > COLLAPSE * highest:
            return None
        scales = list(self._scales)
        self._scales.clear()
        # The fall began after the last step at the highest scale.
        last = max(index for index, (known, _, _) in enumerate(scales) if known == highest)
        _, onset_step, onset_position = scales[last + 1]
        return self._incident(
            observation,
            onset_step,
            onset_position,
            may_recover=True,
            severity=min(COLLAPSE * highest / scale, LARGEST),
            message=f"the loss scale fell from {highest:g} to {scale:g} within {SCALES} steps: gradients overflow at "
            f"any scale",
            numbers={"loss_scale": scale, "highest": highest},
        )

    def _incident(
        self,
        observation: Observation,
        onset_step: int,
        onset_position: int,
        *,
        severity: float,
        may_recover: bool,
        message: str,
        numbers: dict[str, float],
    ) -> Verdict:
        return Verdict(
            kind="incident",
            detector=self.name,
            onset_step=onset_step,
            onset_position=onset_position,
            step=observation.step,
            position=observation.position,
            severity=severity,
            may_recover=may_recover,
            message=message,
            numbers=numbers,
        )

    def rewound(self) -> None:
        """Drop the zeros, and the loss scales that led to them."""
        self._zeros, self._reported = None, False
        self._scales.clear()

    def close(self, last: Observation) -> Verdict | None:
        """Call zeros that should not be an incident: the last weights may be those of a NaN."""
        zeros = self._zeros
        if zeros is None or self._reported:
            return None
        return self._incident(
            last,
            zeros.step,
            zeros.start_position,
            severity=1.0,
            may_recover=False,
            message=f"training ended with a loss of exactly 0, since step {zeros.step}; it was "
            f"{self._sizes[-1][1]:.6g} before",
            numbers={"zeros": float(zeros.count), "before": self._sizes[-1][1]},
        )

    def state_dict(self) -> State:
        """Everything that later verdicts depend on."""
        return {
            "sizes": [list(known) for known in self._sizes],
            "zeros": Streak.saved(self._zeros),
            "reported": self._reported,
            "scales": [list(known) for known in self._scales],
            "scales_seen": self._scales_seen,
        }

    def load_state_dict(self, state: State) -> None:
        """Go on from what `state_dict` returned."""
        self._sizes = deque(((step, float(size)) for step, size in state["sizes"]), maxlen=RECENT)
        self._zeros = Streak.loaded(state["zeros"])
        self._reported = state["reported"]
        self._scales = deque(((scale, step, position) for scale, step, position in state["scales"]), maxlen=SCALES)
        self._scales_seen = state["scales_seen"]
