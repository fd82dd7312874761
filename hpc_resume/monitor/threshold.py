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

    @property
    def pending(self) -> bool:
        """Whether the newest loss was above the limit."""
        return self._streak is not None

    def observe(self, observation: Observation) -> Verdict | None:
        """Compare one loss with the limit."""
        limit = self._settings.loss_threshold
        if limit is None or (math.isfinite(observation.loss) and observation.loss <= limit):
            self._streak = None
            return None
        streak = Streak.extended(self._streak, observation)
        if streak.count < self._settings.loss_patience_steps:
            self._streak = streak
            return None
        return self._incident(streak, limit, observation)

    def close(self, last: Observation) -> Verdict | None:
        """Call an unfinished streak an incident."""
        limit = self._settings.loss_threshold
        return None if self._streak is None or limit is None else self._incident(self._streak, limit, last)

    def _incident(self, streak: Streak, limit: float, observation: Observation) -> Verdict:
        self._streak = None
        return Verdict(
            kind="incident",
            detector=self.name,
            onset_step=streak.step,
            onset_position=streak.start_position,
            step=observation.step,
            position=observation.position,
            message=f"the loss is {observation.loss:.6g} and was above the limit of {limit:g}, or not finite, on "
            f"each of the {streak.count} steps since step {streak.step}",
            numbers={"loss_threshold": limit, "streak_steps": float(streak.count)}
            | ({"loss": observation.loss} if math.isfinite(observation.loss) else {}),
        )

    def state_dict(self) -> State:
        """Everything that later verdicts depend on."""
        return {"streak": Streak.saved(self._streak)}

    def load_state_dict(self, state: State) -> None:
        """Go on from what `state_dict` returned."""
        self._streak = Streak.loaded(state["streak"])
