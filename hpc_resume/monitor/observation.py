"""What the monitor is told after every optimizer step."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """One optimizer step as all ranks saw it together."""

    step: int
    """Number of the optimizer step."""

    start_position: int
    """Samples consumed over all ranks before this step; the data of the step begin there."""

    position: int
    """Samples consumed over all ranks after this step."""

    loss: float
    """Mean loss over the global batch, neither smoothed nor of one rank alone."""

    grad_norm: float | None = None
    """Global gradient norm before clipping; None where the framework has none."""

    skipped: bool = False
    """The framework left this update out, so the weights are what they were."""

    loss_scale: float | None = None
    """What the framework multiplies the loss by against underflow (fp16); None where it does not."""

    weights_at_risk: bool = False
    """Nothing keeps a non-finite gradient away from the weights (ZeRO 0 in fp32, overflow check off)."""

    @property
    def non_finite(self) -> bool:
        """Whether the loss or the gradient norm is NaN or infinite."""
        return not (math.isfinite(self.loss) and (self.grad_norm is None or math.isfinite(self.grad_norm)))
