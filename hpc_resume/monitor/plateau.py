"""A loss that steps up to a higher level and stays there."""

from __future__ import annotations

from hpc_resume.monitor.blocks import Blocks
from hpc_resume.monitor.detector import State
from hpc_resume.monitor.forecast import Expectation
from hpc_resume.monitor.observation import Observation
from hpc_resume.monitor.rise import DESCENDED, DRIFT, FAR_FROM_ZERO, HOVERING, LIMIT, Excursion, RiseTest
from hpc_resume.monitor.settings import MonitorSettings
from hpc_resume.monitor.verdict import Verdict

BLOCK_STEPS = 8
WINDOW_BLOCKS = 64
"""So many blocks tell how noisy they are."""

KNOWN_BLOCKS = 8
"""So many of them must be known before one is judged."""


class PlateauDetector:
    """Test the median of every eight steps against those before it (`RiseTest`), as steps are tested for spikes.

    Medians of eight are less than half as noisy as single steps, and deaf to hard batches: what is no spike, because
    it rises by a few deviations only, is seen when it stays. A rise by less than `plateau_min_rise` of the level adds
    nothing. It judges only a loss that is far from zero or has fallen before; what did neither, as the loss of many RL
    runs that begins at zero and grows, is no measure of what was learned.

    It waits out the patience with spikes, too. It can't see what comes back within some twenty steps, nor what rises
    over hundreds.
    """

    name = "plateau"

    def __init__(self, settings: MonitorSettings) -> None:
        self._settings = settings
        self._blocks = Blocks(BLOCK_STEPS)
        self._test = RiseTest(
            window=WINDOW_BLOCKS,
            known=KNOWN_BLOCKS,
            patience=settings.spike_patience_steps // BLOCK_STEPS + 1,
            noise_of=self._noise_of,
        )
        self._reported = False
        self._highest: float | None = None

    @property
    def pending(self) -> bool:
        """Whether the newest block was above its level."""
        return self._test.excursion is not None

    def observe(self, observation: Observation) -> Verdict | None:
        """Take in one step, and judge the block that it completes."""
        block = self._blocks.take(observation)
        if block is None:
            return None
        self._test.observe(block)
        excursion = self._test.excursion
        if excursion is None:
            self._reported = False
            return None
        lasted = observation.step - excursion.onset_step + 1
        up = excursion.confirmed and excursion.newest > DRIFT and lasted >= self._settings.spike_patience_steps
        if self._reported or not up:
            return None
        self._reported = True
        return self._verdict(excursion, observation)

    def rewound(self) -> None:
        """Drop what was being watched."""
        self._test.forget()
        self._reported = False

    def close(self, last: Observation) -> Verdict | None:  # noqa: ARG002 - as every detector has it
        """Return None: what was not confirmed may be noise."""
        return None

    def _noise_of(self, expected: Expectation) -> float:
        size = abs(expected.level)
        self._highest = expected.level if self._highest is None else max(self._highest, expected.level)
        has_level = size >= FAR_FROM_ZERO * expected.noise
        has_fallen = self._highest - expected.level >= DESCENDED * expected.noise
        noise = max(expected.noise, self._settings.plateau_min_rise / DRIFT * size)
        return noise if has_level or (has_fallen and size >= HOVERING * expected.noise) else float("inf")

    def _verdict(self, excursion: Excursion, observation: Observation) -> Verdict:
        return Verdict(
            kind=self._settings.slow_rise_kind,
            detector=self.name,
            onset_step=excursion.onset_step,
            onset_position=excursion.onset_position,
            step=observation.step,
            position=observation.position,
            severity=excursion.height / LIMIT,
            may_recover=True,
            message=f"the loss went up from {excursion.level:.6g} to {excursion.peak:.6g} since step "
            f"{excursion.onset_step} and stays there: medians of {BLOCK_STEPS} steps rose by {excursion.height:.3g} "
            f"deviations of {excursion.noise:.3g}",
            numbers={
                "level": excursion.level,
                "noise": excursion.noise,
                "limit": excursion.limit,
                "peak": excursion.peak,
                "blocks": float(excursion.values),
                "block_steps": float(BLOCK_STEPS),
            },
        )

    def state_dict(self) -> State:
        """Everything that later verdicts depend on."""
        return {
            "blocks": self._blocks.state_dict(),
            "test": self._test.state_dict(),
            "reported": self._reported,
            "highest": self._highest,
        }

    def load_state_dict(self, state: State) -> None:
        """Go on from what `state_dict` returned."""
        self._blocks.load_state_dict(state["blocks"])
        self._test.load_state_dict(state["test"])
        self._reported = state["reported"]
        self._highest = state["highest"]
