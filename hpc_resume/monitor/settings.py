"""What counts as an anomaly: the `monitor` section of the config."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from hpc_resume.monitor.verdict import VerdictKind

RATE_WINDOW_STEPS = 64
"""The share of bad steps is taken over this many."""

LARGEST_BLOCK_STEPS = 32
"""Slow rises are looked for in medians of at most so many steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MonitorSettings:
    """When the loss is no longer healthy."""

    spike_min_rise: float = 0.035
    """A rise by less than this share of the loss's level is never evidence for a spike, however calm the loss was.

    Lower finds smaller spikes, and takes more of the waves of a smooth loss for some."""

    spike_patience_steps: int = 10
    """A spike that is still up after so many steps is an incident; one that came back is a near miss.

    Plateaus and divergences wait as long.

    More leaves more of them to heal by themselves, and loses so many steps more where they don't."""

    spike_window_steps: int = 128
    """How many healthy steps tell how noisy the loss is.

    Fewer follow a change of the noise sooner, and know it less well."""

    spike_warmup_steps: int = 5
    """A spike can be called after so many steps and 4 more. More ignores longer what happens in the first ones."""

    plateau_min_rise: float = 0.02
    """A rise by less than this share of the level is never evidence for a step up to a higher plateau.

    Lower finds smaller steps, and takes more waves of the data for some."""

    divergence_min_rise: float = 0.02
    """A rise by less than this share above the best level is never evidence for a slow divergence.

    Lower finds it sooner, and takes more waves of the data for one."""

    slow_rises: Literal["act", "record"] = "act"
    """Whether a plateau shift or a slow divergence is an incident, or is only recorded as a near miss.

    `record` is for trainings whose loss rises gradually on purpose: a curriculum, a learning rate that goes up again.
    A jump that is out of bounds stays a spike; for that raise `spike_min_rise`."""

    zero_patience_steps: int = 10
    """A loss that was well away from 0, and then is exactly 0 for so many steps, is an incident.

    More waits longer before it believes that."""

    loss_watchdog_threshold: float | None = None
    """An absolute loss above which training has failed, as in axolotl; null for none."""

    loss_watchdog_patience: int = 3
    """Optimizer steps in a row above `loss_watchdog_threshold`, or not finite, that make an incident, as in axolotl.

    More lets it come back by itself, and loses so many steps more where it doesn't."""

    skipped_patience_steps: int = 5
    """Skipped or non-finite steps in a row that make an incident while DeepSpeed protects the weights.

    More lets the loss scale of fp16 search for longer."""

    skipped_rate: float = 0.25
    """Share of the last 64 steps that may be skipped before that is an incident; more tolerates more waste."""

    grace_steps: int = 10
    """For so many steps after a rollback the bounds for spikes are twice as wide: the data are other ones then."""

    def __post_init__(self) -> None:
        """Refuse what can't mean anything."""
        for name in (
            "spike_patience_steps",
            "spike_window_steps",
            "spike_warmup_steps",
            "zero_patience_steps",
            "loss_watchdog_patience",
            "skipped_patience_steps",
        ):
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"monitor.{name} is {value}; it must be 1 or more")
        if self.grace_steps < 0:
            raise ValueError(f"monitor.grace_steps is {self.grace_steps}; it must be 0 or more")
        for name, most in (("spike_patience_steps", 1000), ("spike_window_steps", 2048)):
            if getattr(self, name) > most:
                raise ValueError(f"monitor.{name} is {getattr(self, name)}; it must be at most {most}")
        for name in ("spike_min_rise", "plateau_min_rise", "divergence_min_rise"):
            value = getattr(self, name)
            # `not ... >= 0` refuses NaN too.
            if not value >= 0:
                raise ValueError(f"monitor.{name} is {value}; it must be 0 or more")
        if self.slow_rises not in ("act", "record"):
            raise ValueError(f"monitor.slow_rises is {self.slow_rises!r}; it must be act or record")
        threshold = self.loss_watchdog_threshold
        if threshold is not None and not math.isfinite(threshold):
            raise ValueError(
                f"monitor.loss_watchdog_threshold is {threshold}; it must be a finite number, or null for none"
            )
        if not 0 < self.skipped_rate <= 1:
            raise ValueError(f"monitor.skipped_rate is {self.skipped_rate}; it must be above 0 and at most 1")
        if self.spike_warmup_steps > self.spike_window_steps:
            raise ValueError(
                f"monitor.spike_warmup_steps is {self.spike_warmup_steps}; it must not exceed "
                f"monitor.spike_window_steps ({self.spike_window_steps})"
            )

    @property
    def slow_rise_kind(self) -> VerdictKind:
        """What a verdict about a slow rise is."""
        return "incident" if self.slow_rises == "act" else "near_miss"

    @property
    def horizon_steps(self) -> int:
        """How many steps before the first one that is not known to be healthy an incident may turn out to have begun.

        No step is known to be healthy while any detector has evidence, and an incident begins with the first step of
        that. But a block of steps is judged at its end, and a share of bad steps begins with the first of them.
        """
        return max(RATE_WINDOW_STEPS, LARGEST_BLOCK_STEPS)
