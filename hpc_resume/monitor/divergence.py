"""A loss that rises slowly from the best level that it had."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from hpc_resume.monitor.blocks import Blocks
from hpc_resume.monitor.detector import State
from hpc_resume.monitor.forecast import FEW_VALUES
from hpc_resume.monitor.observation import Observation
from hpc_resume.monitor.rise import DESCENDED, FAR_FROM_ZERO, HOVERING, LARGEST, LIMIT, Point
from hpc_resume.monitor.settings import LARGEST_BLOCK_STEPS, MonitorSettings
from hpc_resume.monitor.verdict import Verdict
from hpc_resume.monitor.window import Window, median

BLOCK_STEPS = LARGEST_BLOCK_STEPS
LEVEL_BLOCKS = 8
"""A level is the median of so many blocks: one lucky block is no level."""

TREND_BLOCKS = 16
"""The trend is tested over so many blocks."""

WINDOW_BLOCKS = 64
"""So many blocks tell how noisy they are."""

KNOWN_BLOCKS = 12
"""So many of them must be known before one is judged."""

DRIFT = 3.0
"""A block so many deviations above the best level is evidence neither for a divergence nor against one.

More than for a spike, since the best of many levels is lower than the true one."""

ENOUGH = 12.0
"""So much evidence, of four blocks at least, is enough."""

TREND_DEVIATIONS = 3.0
"""The trend must be up by so many of its standard deviations; less than one block in a thousand is by chance."""

SETTLED_BLOCKS = 48
"""A climb that has not ended after so many blocks has reached a new level."""


@dataclass(kw_only=True, slots=True)
class Climb:
    """Blocks above the best level, from the first of them on."""

    onset_step: int
    onset_position: int
    evidence: float = 0.0
    blocks: int = 0
    peak: float = 0.0
    reported: bool = False


class DivergenceDetector:
    """Sum up how far medians of 32 steps lie above the best level so far (Page 1954), and ask for a trend.

    A level is the running median of eight blocks, noise the robust deviation of blocks from it, floored so that a
    rise of less than `divergence_min_rise` adds nothing. The trend is Mann's and Kendall's (1945): the signs of all
    differences between the last 16 blocks; it tells a loss that is on its way up from one whose best level was luck,
    or whose data have become harder for a while. Like a plateau, it is judged only once the loss has fallen. After
    48 blocks the level reached is taken for the best one, whatever it was.

    It can't see anything in the first 700 steps, nor a rise that takes many thousands of them.
    """

    name = "divergence"

    def __init__(self, settings: MonitorSettings) -> None:
        self._settings = settings
        self._blocks = Blocks(BLOCK_STEPS)
        self._recent: deque[float] = deque(maxlen=TREND_BLOCKS)
        self._errors = Window(WINDOW_BLOCKS)
        self._best: float | None = None
        self._highest: float | None = None
        self._fallen = 0.0
        self._climb: Climb | None = None

    @property
    def pending(self) -> bool:
        """Whether the newest block was far above the best level."""
        return self._climb is not None

    def observe(self, observation: Observation) -> Verdict | None:
        """Take in one step, and judge the block that it completes."""
        block = self._blocks.take(observation)
        if block is None:
            return None
        recent = list(self._recent)[-LEVEL_BLOCKS:]
        self._recent.append(block.value)
        if len(recent) < LEVEL_BLOCKS:
            return None
        level = median(sorted(recent))
        self._highest = level if self._highest is None else max(self._highest, level)
        best = self._best = level if self._best is None else self._best
        noise = self._noise(best)
        if noise is not None and self._weigh(block, best, noise, observation.step):
            return self._verdict(best, noise, observation)
        if self._climb is None:
            self._errors.add(block.value - level)
            newest = median(sorted(list(self._recent)[-LEVEL_BLOCKS:]))
            if newest < best:
                self._set_best(newest)
        return None

    def _noise(self, best: float) -> float | None:
        """Return the deviation of a block from its level, None if the loss can't be judged yet, or at all."""
        if len(self._errors) < KNOWN_BLOCKS:
            return None
        noise = self._errors.deviation(self._errors.median()) * (1.0 + FEW_VALUES / len(self._errors))
        has_level = abs(best) >= FAR_FROM_ZERO * noise or self._fallen >= DESCENDED * noise
        if abs(best) < HOVERING * noise or not (has_level or self._climb is not None):
            return None
        noise = max(noise, self._settings.divergence_min_rise / DRIFT * abs(best))
        return noise if 0.0 < noise < LARGEST else None

    def _weigh(self, block: Point, best: float, noise: float, step: int) -> bool:
        """Add one block to the evidence; return whether that makes it a divergence."""
        climb = self._climb or Climb(onset_step=block.step, onset_position=block.start_position, peak=block.value)
        evidence = climb.evidence + min((block.value - best) / noise, LIMIT) - DRIFT
        if evidence <= 0.0:
            self._climb = None
            return False
        self._climb = climb
        climb.evidence = min(evidence, ENOUGH)
        climb.blocks += 1
        climb.peak = max(climb.peak, block.value)
        patient = step - climb.onset_step + 1 >= self._settings.spike_patience_steps
        rises = evidence >= ENOUGH and trend(list(self._recent)) > TREND_DEVIATIONS
        if rises and patient and not climb.reported:
            climb.reported = True
            return True
        if climb.blocks >= SETTLED_BLOCKS:
            self._climb = None
            self._set_best(median(sorted(list(self._recent)[-LEVEL_BLOCKS:])))
        return False

    def _set_best(self, level: float) -> None:
        highest = level if self._highest is None else self._highest
        self._best, self._fallen = level, max(0.0, highest - level)

    def rewound(self) -> None:
        """Drop the evidence; the best level stays what it was."""
        self._climb = None

    def close(self, last: Observation) -> Verdict | None:  # noqa: ARG002 - as every detector has it
        """Return None: what has no trend yet may be noise."""
        return None

    def _verdict(self, best: float, noise: float, observation: Observation) -> Verdict:
        climb = self._climb
        assert climb is not None  # _weigh has just kept it
        slope = trend(list(self._recent))
        height = min((climb.peak - best) / noise, LARGEST)
        return Verdict(
            kind=self._settings.slow_rise_kind,
            detector=self.name,
            onset_step=climb.onset_step,
            onset_position=climb.onset_position,
            step=observation.step,
            position=observation.position,
            severity=height / LIMIT,
            may_recover=True,
            message=f"the loss has been rising since step {climb.onset_step}: its best level was {best:.6g}, the "
            f"median of {BLOCK_STEPS} steps went up to {climb.peak:.6g}, by {height:.3g} deviations of {noise:.3g}, "
            f"with a trend of {slope:.1f} deviations",
            numbers={
                "best": best,
                "noise": noise,
                "limit": best + LIMIT * noise,
                "peak": climb.peak,
                "trend": slope,
                "blocks": float(climb.blocks),
                "block_steps": float(BLOCK_STEPS),
            },
        )

    def state_dict(self) -> State:
        """Everything that later verdicts depend on."""
        return {
            "blocks": self._blocks.state_dict(),
            "recent": list(self._recent),
            "errors": self._errors.to_list(),
            "best": self._best,
            "highest": self._highest,
            "fallen": self._fallen,
            "climb": None if self._climb is None else asdict(self._climb),
        }

    def load_state_dict(self, state: State) -> None:
        """Go on from what `state_dict` returned."""
        self._blocks.load_state_dict(state["blocks"])
        self._recent = deque((float(value) for value in state["recent"]), maxlen=TREND_BLOCKS)
        self._errors = Window(WINDOW_BLOCKS, [float(error) for error in state["errors"]][-WINDOW_BLOCKS:])
        self._best = state["best"]
        self._highest = state["highest"]
        self._fallen = state["fallen"]
        self._climb = None if state["climb"] is None else Climb(**state["climb"])


def trend(values: Sequence[float]) -> float:
    """Return Mann's and Kendall's statistic in its own standard deviations: 0 for no trend, positive for upward."""
    n = len(values)
    signs = sum(
        (later > earlier) - (later < earlier) for index, earlier in enumerate(values) for later in values[index + 1 :]
    )
    return signs / math.sqrt(n * (n - 1) * (2 * n + 5) / 18) if n > 1 else 0.0
