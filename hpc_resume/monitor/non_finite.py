"""Steps with a NaN or infinite loss or gradient, and updates that the framework skipped."""

from __future__ import annotations

import math
from collections import deque

from hpc_resume.monitor.detector import State, Streak
from hpc_resume.monitor.observation import Observation
from hpc_resume.monitor.settings import RATE_WINDOW_STEPS, MonitorSettings
from hpc_resume.monitor.verdict import Verdict

SEARCH_STEPS = 64
"""So many skipped steps before the first update are fp16's search for a loss scale."""

RATE_LEAST_STEPS = 16
"""A share of fewer steps than this says nothing."""


class NonFiniteDetector:
    """Tell a skipped step, which harms nothing, from weights that are lost.

    A step is bad when its loss or gradient norm is not finite, or its update was skipped. Where DeepSpeed checks
    for overflow, a bad step leaves the weights as they were, so one is only counted; a streak, or too large a
    share of the recent steps, is an incident. It is one at once when the weights may be gone: a non-finite value
    where nothing protects them, or a non-finite loss whose update was applied all the same.
    """

    name = "non_finite"

    def __init__(self, settings: MonitorSettings) -> None:
        self._settings = settings
        self._streak: Streak | None = None
        self._seen = 0
        # Of each bad step among the last RATE_WINDOW_STEPS: its number in `_seen`, step and start position.
        self._recent: deque[tuple[int, int, int]] = deque()
        self._bad_steps = 0
        self._reported = False
        self._searching = SEARCH_STEPS

    @property
    def pending(self) -> bool:
        """Whether the newest step was bad."""
        return self._streak is not None

    def observe(self, observation: Observation) -> Verdict | None:
        """Count a bad step, and judge the streak and the share."""
        self._seen += 1
        if self._recent and self._recent[0][0] <= self._seen - RATE_WINDOW_STEPS:
            self._recent.popleft()
        if not (observation.skipped or observation.non_finite):
            self._streak, self._reported, self._searching = None, False, 0
            return None
        if observation.skipped and observation.loss_scale is not None and self._searching > 0:
            # Before the first update fp16 looks for its loss scale, from far too high a one downward.
            self._searching -= 1
            self._bad_steps += 1
            return None
        self._bad_steps += 1
        self._recent.append((self._seen, observation.step, observation.start_position))
        self._streak = Streak.extended(self._streak, observation)
        if self._reported:
            return None
        verdict = self._judge(observation, self._streak)
        if verdict is not None:
            # The steps that made this incident must not make the next one too.
            self._reported = True
            self._recent.clear()
            self._seen = 0
        return verdict

    def _judge(self, observation: Observation, streak: Streak) -> Verdict | None:
        values = f"loss {observation.loss:g}"
        if observation.grad_norm is not None:
            values += f", gradient norm {observation.grad_norm:g}"
        patience = self._settings.skipped_patience_steps
        onset = (streak.step, streak.start_position)
        if observation.non_finite and observation.weights_at_risk:
            reason = f"step {observation.step} is not finite ({values}) and nothing protects the weights from that"
            return self._incident(observation, onset, reason, lost=True)
        if not math.isfinite(observation.loss) and not observation.skipped:
            reason = f"step {observation.step} is not finite ({values}) and its update was not skipped"
            return self._incident(observation, onset, reason, lost=True)
        if streak.count >= patience:
            reason = f"{streak.count} steps in a row since step {streak.step} were skipped or not finite ({values})"
            return self._incident(observation, onset, reason, severity=streak.count / patience)
        steps = min(self._seen, RATE_WINDOW_STEPS)
        bad = len(self._recent)
        if steps >= RATE_LEAST_STEPS and bad > self._settings.skipped_rate * steps:
            _, onset_step, onset_position = self._recent[0]
            reason = (
                f"{bad} of the last {steps} steps were skipped or not finite, the first of them step {onset_step}; "
                f"a share of {self._settings.skipped_rate:g} is allowed"
            )
            share = bad / (self._settings.skipped_rate * steps)
            return self._incident(observation, (onset_step, onset_position), reason, severity=share)
        return None

    def _incident(
        self,
        observation: Observation,
        onset: tuple[int, int],
        reason: str,
        *,
        severity: float = 1.0,
        lost: bool = False,
    ) -> Verdict:
        onset_step, onset_position = onset
        return Verdict(
            kind="incident",
            detector=self.name,
            onset_step=onset_step,
            onset_position=onset_position,
            step=observation.step,
            position=observation.position,
            severity=severity,
            may_recover=not lost,
            message=reason,
            numbers={
                "streak_steps": float(self._streak.count if self._streak else 0),
                "recent_bad_steps": float(len(self._recent)),
                "recent_steps": float(min(self._seen, RATE_WINDOW_STEPS)),
                "bad_steps": float(self._bad_steps),
            },
        )

    def rewound(self) -> None:
        """Drop the streak; the share of bad steps is that of steps that were really trained."""
        self._streak, self._reported = None, False

    def close(self, last: Observation) -> Verdict | None:  # noqa: ARG002 - as every detector has it
        """Return None: a skipped step leaves the weights as they were, so the last ones are as good as before."""
        return None

    def state_dict(self) -> State:
        """Everything that later verdicts depend on."""
        return {
            "streak": Streak.saved(self._streak),
            "seen": self._seen,
            "recent": [list(entry) for entry in self._recent],
            "bad_steps": self._bad_steps,
            "reported": self._reported,
            "searching": self._searching,
        }

    def load_state_dict(self, state: State) -> None:
        """Go on from what `state_dict` returned."""
        self._streak = Streak.loaded(state["streak"])
        self._seen = state["seen"]
        self._recent = deque((number, step, position) for number, step, position in state["recent"])
        self._bad_steps = state["bad_steps"]
        self._reported = state["reported"]
        self._searching = state["searching"]
