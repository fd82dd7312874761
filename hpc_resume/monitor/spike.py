"""A loss that leaves the band of its own recent past."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace

from hpc_resume.monitor.baseline import Baseline, Point
from hpc_resume.monitor.detector import State
from hpc_resume.monitor.observation import Observation
from hpc_resume.monitor.settings import MonitorSettings
from hpc_resume.monitor.verdict import Verdict, VerdictKind

ELEVATED_SHARE = 3 / 8
"""A loss this far on its way out of bounds, just before a spike, already belongs to it.

With the default of 8 deviations that is 3: one step in several hundred is so high by itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Excursion:
    """A spike that is being watched."""

    onset_step: int
    onset_position: int
    median: float
    deviation: float
    limit: float
    peak: float
    steps_out: int = 0
    steps_back: int = 0

    def after(self, loss: float) -> Excursion:
        """Return the excursion with one more step in it."""
        if loss > self.limit:
            return replace(self, steps_out=self.steps_out + 1, peak=max(self.peak, loss))
        return replace(self, steps_back=self.steps_back + 1)

    @property
    def excess(self) -> int:
        """How many more steps were out of bounds than back in bounds."""
        return self.steps_out - self.steps_back


class SpikeDetector:
    """Compare each loss with the median and the median absolute deviation of the last healthy ones.

    Both ignore outliers (Hampel's identifier), and what is out of bounds never enters them, so neither a hard
    batch nor the spike itself widens the bounds. One step out of bounds opens an excursion; each further one speaks
    for an incident, each step in bounds against it. So a lone hard batch is closed by the next step, while a
    divergence that dips back in for a step is not taken for a recovery. No step of an excursion, in bounds or out,
    enters the baseline, and its limit stays as it was at the start.

    Only finite losses count; the others are the non-finite detector's business.
    """

    name = "spike"

    def __init__(self, settings: MonitorSettings) -> None:
        self._settings = settings
        self._baseline = Baseline(settings.spike_window_steps)
        self._excursion: Excursion | None = None

    @property
    def pending(self) -> bool:
        """Whether a spike is being watched."""
        return self._excursion is not None

    def observe(self, observation: Observation) -> Verdict | None:
        """Compare one loss with the bounds."""
        if not math.isfinite(observation.loss):
            return None
        excursion = self._excursion or self._opened(observation)
        if excursion is None:
            self._baseline.add(Point(observation.step, observation.start_position, observation.loss))
            return None
        self._excursion = excursion = excursion.after(observation.loss)
        if excursion.excess >= self._settings.spike_patience_steps:
            return self._closed(excursion, observation, "incident")
        if excursion.excess == 0:
            return self._closed(excursion, observation, "near_miss")
        return None

    def close(self, last: Observation) -> Verdict | None:
        """Call an open excursion an incident."""
        return None if self._excursion is None else self._closed(self._excursion, last, "incident")

    def _opened(self, observation: Observation) -> Excursion | None:
        """Start an excursion when the loss is out of bounds, at the first step that was on its way there."""
        if len(self._baseline) < self._settings.spike_warmup_steps:
            return None
        median = self._baseline.median()
        deviation = self._baseline.deviation(median)
        rise = max(
            self._settings.spike_deviations * deviation,
            self._settings.spike_min_rise * abs(median),
            self._settings.spike_min_rise_absolute,
        )
        limit = median + rise
        if not observation.loss > limit:
            return None
        onset = Point(observation.step, observation.start_position, observation.loss)
        elevated = median + ELEVATED_SHARE * rise
        while (newest := self._baseline.newest) is not None and newest.loss > elevated:
            onset = self._baseline.drop_newest()
        return Excursion(
            onset_step=onset.step,
            onset_position=onset.start_position,
            median=median,
            deviation=deviation,
            limit=limit,
            peak=observation.loss,
        )

    def _closed(self, excursion: Excursion, observation: Observation, kind: VerdictKind) -> Verdict:
        self._excursion = None
        steps = excursion.steps_out + excursion.steps_back
        ending = "did not come back" if kind == "incident" else "came back by itself"
        return Verdict(
            kind=kind,
            detector=self.name,
            onset_step=excursion.onset_step,
            onset_position=excursion.onset_position,
            step=observation.step,
            position=observation.position,
            message=f"the loss rose to {excursion.peak:.6g} and {ending}: {excursion.steps_out} of {steps} steps "
            f"were above {excursion.limit:.6g}, where the recent median is {excursion.median:.6g} and the robust "
            f"deviation {excursion.deviation:.3g}",
            numbers={
                "loss": observation.loss,
                "peak": excursion.peak,
                "limit": excursion.limit,
                "median": excursion.median,
                "deviation": excursion.deviation,
                "steps_out": float(excursion.steps_out),
                "steps_back": float(excursion.steps_back),
            },
        )

    def state_dict(self) -> State:
        """Everything that later verdicts depend on."""
        return {
            "baseline": self._baseline.to_list(),
            "excursion": None if self._excursion is None else asdict(self._excursion),
        }

    def load_state_dict(self, state: State) -> None:
        """Go on from what `state_dict` returned."""
        self._baseline = Baseline.from_list(self._settings.spike_window_steps, state["baseline"])
        excursion = state["excursion"]
        self._excursion = None if excursion is None else Excursion(**excursion)
