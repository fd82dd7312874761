"""What counts as an anomaly: the `monitor` section of the config."""

from __future__ import annotations

import math
from dataclasses import dataclass

RATE_WINDOW_STEPS = 64
"""The share of bad steps is taken over this many."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MonitorSettings:
    """When the loss is no longer healthy."""

    spike_deviations: float = 8.0
    """A loss this many robust deviations above the recent median is out of bounds."""

    spike_min_rise: float = 0.05
    """A rise below this share of the recent median's size is never a spike, however calm the loss was."""

    spike_min_rise_absolute: float = 0.01
    """A rise below this, in the loss's own unit, is never a spike; 0.01 nats are 1% of perplexity.

    It matters where losses are close to 0 and the other two bounds vanish."""

    spike_patience_steps: int = 5
    """A spike is an incident when so many more of its steps were out of bounds than back in bounds.

    One that comes back before that is a near miss."""

    spike_window_steps: int = 128
    """How many healthy steps the recent median and deviation are taken from."""

    spike_warmup_steps: int = 20
    """How many healthy steps must be known before a spike can be called."""

    loss_threshold: float | None = None
    """An absolute loss above which training has failed (axolotl's `loss_watchdog_threshold`)."""

    loss_patience_steps: int = 3
    """Steps in a row above `loss_threshold` that make an incident (axolotl's `loss_watchdog_patience`)."""

    skipped_patience_steps: int = 5
    """Skipped or non-finite steps in a row that make an incident while DeepSpeed protects the weights."""

    skipped_rate: float = 0.25
    """Share of the last 64 steps that may be skipped before that is an incident."""

    def __post_init__(self) -> None:
        """Refuse what can't mean anything."""
        for name in (
            "spike_patience_steps",
            "spike_window_steps",
            "spike_warmup_steps",
            "loss_patience_steps",
            "skipped_patience_steps",
        ):
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"monitor.{name} is {value}; it must be 1 or more")
        # `not ... > 0` refuses NaN too.
        if not self.spike_deviations > 0:
            raise ValueError(f"monitor.spike_deviations is {self.spike_deviations}; it must be above 0")
        for name in ("spike_min_rise", "spike_min_rise_absolute"):
            value = getattr(self, name)
            if not value >= 0:
                raise ValueError(f"monitor.{name} is {value}; it must be 0 or more")
        if self.loss_threshold is not None and not math.isfinite(self.loss_threshold):
            raise ValueError(
                f"monitor.loss_threshold is {self.loss_threshold}; it must be a finite number, or null for none"
            )
        if not 0 < self.skipped_rate <= 1:
            raise ValueError(f"monitor.skipped_rate is {self.skipped_rate}; it must be above 0 and at most 1")
        if self.spike_warmup_steps > self.spike_window_steps:
            raise ValueError(
                f"monitor.spike_warmup_steps is {self.spike_warmup_steps}; it must not exceed "
                f"monitor.spike_window_steps ({self.spike_window_steps})"
            )

    @property
    def horizon_steps(self) -> int:
        """How many steps before the first one that is not known to be healthy an incident may turn out to have begun.

        A spike begins where the loss was first on its way up, and no more than half of the window lies above its own
        median; a share of bad steps begins with the first of them. The others begin with the first step that shows.
        """
        return max(self.spike_window_steps // 2 + self.spike_patience_steps, RATE_WINDOW_STEPS)
