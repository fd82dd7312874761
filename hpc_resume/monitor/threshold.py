"""A plain limit on the loss, for those who know their number."""

from __future__ import annotations

import math

from hpc_resume.monitor.detector import State, Streak
from hpc_resume.monitor.observation import Observation
from hpc_resume.monitor.settings import MonitorSettings
from hpc_resume.monitor.verdict import Verdict


class ThresholdDetector:
    """Call it an incident when the loss stays above a fixed limit.

    These are axolotl's `loss_watchdog_threshold` and `loss_watchdog_patience`, with the patience counted in
    optimizer steps, each with its own loss, and with NaN counted as above the limit, not as a recovery.
    """

    name = "threshold"

    def __init__(self, settings: MonitorSettings) -> None:
        self._settings = settings
        self._streak: Streak | None = None
        self._reported = False

    @property
    def pending(self) -> bool:
        """Whether the newest loss was above the limit."""
        return self._streak is not None

    def observe(self, observation: Observation) -> Verdict | None:
        """Compare one loss with the limit."""
        limit = self._settings.loss_watchdog_threshold
        if limit is None or (math.isfinite(observation.loss) and observation.loss <= limit):
            self._streak, self._reported = None, False
            return None
        streak = self._streak = Streak.extended(self._streak, observation)
        if self._reported or streak.count < self._settings.loss_watchdog_patience:
            return None
        self._reported = True
        return self._incident(streak, limit, observation)

    def rewound(self) -> None:
        """Drop the streak."""
        self._streak, self._reported = None, False

    def close(self, last: Observation) -> Verdict | None:
        """Call an unfinished streak an incident."""
        limit = self._settings.loss_watchdog_threshold
        if self._streak is None or self._reported or limit is None:
            return None
        return self._incident(self._streak, limit, last)

    def _incident(self, streak: Streak, limit: float, observation: Observation) -> Verdict:
        return Verdict(
            kind="incident",
            detector=self.name,
            onset_step=streak.step,
            onset_position=streak.start_position,
            step=observation.step,
            position=observation.position,
            severity=streak.count / self._settings.loss_watchdog_patience,
            may_recover=math.isfinite(observation.loss),
            message=f"the loss is {observation.loss:.6g} and was above the limit of {limit:g}, or not finite, on "
            f"each of the {streak.count} steps since step {streak.step}",
            numbers={"loss_watchdog_threshold": limit, "streak_steps": float(streak.count)}
            | ({"loss": observation.loss} if math.isfinite(observation.loss) else {}),
        )

    def state_dict(self) -> State:
        """Everything that later verdicts depend on."""
        return {"streak": Streak.saved(self._streak), "reported": self._reported}

    def load_state_dict(self, state: State) -> None:
        """Go on from what `state_dict` returned."""
        self._streak = Streak.loaded(state["streak"])
        self._reported = state["reported"]
