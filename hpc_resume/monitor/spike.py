"""A loss that leaves the band of its own recent past."""

from __future__ import annotations

import math

from hpc_resume.monitor.detector import State
from hpc_resume.monitor.forecast import Expectation
from hpc_resume.monitor.grad_norm import GradNormWitness
from hpc_resume.monitor.observation import Observation
from hpc_resume.monitor.rise import DESCENDED, DRIFT, ENOUGH, HOVERING, LIMIT, Excursion, Outcome, Point, RiseTest
from hpc_resume.monitor.settings import MonitorSettings
from hpc_resume.monitor.verdict import Verdict, VerdictKind

SPARSE_STEPS = 5
"""Two values of a log that are this far apart can't come from the same hard stretch of data."""

SPARSE_ENOUGH = 6.0
"""Evidence that confirms a spike in such a log: two values, not three."""

MEAN_STEPS = 10
GROSS = 4.0 * LIMIT
"""In a log of every tenth step or fewer, most often of means, one value that is so far up is a spike by itself."""

CORROBORATED_ENOUGH = 9.0
"""Evidence that confirms a spike when gradients were far too large as well: two values out of bounds, one nearly."""

TWO_OUT = 2.0 * (LIMIT - DRIFT)
"""Evidence of two values out of bounds: not enough while training goes on, too much to end with."""

HOVERING_WIDER = 10.0
"""So many times wider the bounds of such a loss are (GRPO's, DPO's near its end): its tails are heavy."""

NEVER_FALLEN = 6.0
"""A loss that was never higher is held to hover at this many: what only grows may begin at zero (the KL of GRPO)."""

GRACE_WIDER = 2.0
"""So many times wider the bounds are for a few steps after a rollback."""


class SpikeDetector:
    """Test the loss of every step against what the steps before it promise (`RiseTest`).

    The statistic is the sum of the loss's deviations above its expected level, in units of its own noise, so it has no
    unit. A rise by less than `spike_min_rise` of the level adds nothing to it, however calm the loss was. A spike is
    confirmed by three steps that are out of bounds, or more that are nearly so: a hard batch sticks out for one step,
    a hard stretch of data for two. A confirmed spike that comes back within the patience is a near miss; one that is
    still out after it is an incident.

    It can't see a rise that is slower than its window, nor one of losses that hover about zero unless it is gross.
    Only finite losses count; the others are the non-finite detector's business.
    """

    name = "spike"

    def __init__(self, settings: MonitorSettings) -> None:
        self._settings = settings
        self._test = RiseTest(
            window=settings.spike_window_steps,
            known=settings.spike_warmup_steps,
            patience=settings.spike_patience_steps,
            noise_of=self._noise_of,
        )
        self._highest: float | None = None
        self._witness = GradNormWitness()
        self._corroborated = 0
        self._last_step: int | None = None
        self._reported = False
        self._grace = 0

    @property
    def pending(self) -> bool:
        """Whether the loss is above its level."""
        return self._test.excursion is not None

    def rewound(self) -> None:
        """Drop what was being watched, and be lenient for a few steps."""
        self._test.forget()
        self._corroborated, self._reported = 0, False
        self._grace = self._settings.grace_steps

    def observe(self, observation: Observation) -> Verdict | None:
        """Compare one loss with its level."""
        apart = 1 if self._last_step is None else observation.step - self._last_step
        self._last_step = observation.step
        anomalous = self._witness.observe(observation.grad_norm)
        widened, self._grace = (GRACE_WIDER, self._grace - 1) if self._grace > 0 else (1.0, 0)
        # Exactly 0 is no loss but the lack of one: of GRPO where all answers are alike, or of an overflow.
        if observation.loss == 0.0 or not math.isfinite(observation.loss):
            return None
        self._corroborated += anomalous
        point = Point(observation.step, observation.start_position, observation.loss)
        gross = GROSS if apart >= MEAN_STEPS else math.inf
        outcome = self._test.observe(point, enough=self._enough(apart), gross=gross, widened=widened)
        if outcome in ("watched", "confirmed"):
            return self._judge(observation)
        verdict = None if outcome == "calm" else self._over(observation, outcome)
        self._corroborated, self._reported = int(anomalous), False
        return verdict

    def _over(self, observation: Observation, outcome: Outcome) -> Verdict | None:
        """Judge a rise that came back, or that became the new level before the patience was over."""
        closed = self._test.last
        if closed is None or not closed.confirmed or self._reported:
            return None
        stayed = outcome == "settled" and closed.newest > DRIFT
        return self._verdict(closed, observation, "incident" if stayed else "near_miss")

    def _enough(self, apart: int) -> float:
        if apart >= SPARSE_STEPS:
            return SPARSE_ENOUGH
        return CORROBORATED_ENOUGH if self._corroborated >= 2 else ENOUGH

    def _judge(self, observation: Observation) -> Verdict | None:
        excursion = self._test.excursion
        if excursion is None or not excursion.confirmed or self._reported or excursion.newest <= DRIFT:
            return None
        if observation.step - excursion.onset_step + 1 < self._settings.spike_patience_steps:
            return None
        self._reported = True
        return self._verdict(excursion, observation, "incident")

    def close(self, last: Observation) -> Verdict | None:
        """Call it an incident when training ended out of bounds, by more than one hard batch can explain."""
        excursion = self._test.excursion
        if excursion is None or self._reported:
            return None
        if excursion.newest <= DRIFT:
            return self._verdict(excursion, last, "near_miss") if excursion.confirmed else None
        beyond = excursion.confirmed or excursion.evidence >= TWO_OUT or excursion.newest >= GROSS
        return self._verdict(excursion, last, "incident") if beyond else None

    def _noise_of(self, expected: Expectation) -> float:
        size = abs(expected.level)
        self._highest = expected.level if self._highest is None else max(self._highest, expected.level)
        has_fallen = self._highest - expected.level >= DESCENDED * expected.noise
        hovers = size < (HOVERING if has_fallen else NEVER_FALLEN) * expected.noise
        noise = max(expected.noise, self._settings.spike_min_rise / DRIFT * size)
        return noise * HOVERING_WIDER if hovers else noise

    def _verdict(self, excursion: Excursion, observation: Observation, kind: VerdictKind) -> Verdict:
        ending = "did not come back" if kind == "incident" else "came back by itself"
        norms = "; gradients were far too large as well" if self._corroborated else ""
        return Verdict(
            kind=kind,
            detector=self.name,
            onset_step=excursion.onset_step,
            onset_position=excursion.onset_position,
            step=observation.step,
            position=observation.position,
            severity=excursion.height / LIMIT,
            may_recover=True,
            message=f"the loss rose from {excursion.level:.6g} to {excursion.peak:.6g} since step "
            f"{excursion.onset_step} and {ending}: {excursion.height:.3g} deviations of {excursion.noise:.3g} at "
            f"its peak{norms}",
            numbers={
                "level": excursion.level,
                "noise": excursion.noise,
                "limit": excursion.limit,
                "peak": excursion.peak,
                "steps": float(observation.step - excursion.onset_step + 1),
                "anomalous_norms": float(self._corroborated),
            }
            # Training may end with a NaN, which is not this detector's business.
            | ({"loss": observation.loss} if math.isfinite(observation.loss) else {}),
        )

    def state_dict(self) -> State:
        """Everything that later verdicts depend on."""
        return {
            "test": self._test.state_dict(),
            "highest": self._highest,
            "witness": self._witness.state_dict(),
            "corroborated": self._corroborated,
            "last_step": self._last_step,
            "reported": self._reported,
            "grace": self._grace,
        }

    def load_state_dict(self, state: State) -> None:
        """Go on from what `state_dict` returned."""
        self._test.load_state_dict(state["test"])
        self._highest = state["highest"]
        self._witness.load_state_dict(state["witness"])
        self._corroborated = state["corroborated"]
        self._last_step = state["last_step"]
        self._reported = state["reported"]
        self._grace = state["grace"]
