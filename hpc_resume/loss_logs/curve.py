"""A loss curve as a log has it, in the steps of one training."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from itertools import pairwise

from hpc_resume.errors import ConfigError


class NoCurveError(ConfigError):
    """A file can be read, but holds no training loss in any format that is known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedPoint:
    """What a log says about one optimizer step, or about those since the point before."""

    step: int
    """Number of the (last) optimizer step."""

    loss: float
    """As logged: of this step, or a mean over the steps since the point before. NaN and infinity are values."""

    grad_norm: float | None = None
    """Gradient norm, None where it is not logged."""

    loss_scale: float | None = None
    """What the loss is multiplied by in fp16, None where it is not logged."""

    skipped: bool = False
    """Every update since the point before was left out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LossCurve:
    """The loss of one training; steps rise from point to point, and there is one point at least."""

    name: str
    """Where it comes from: a path, and what else tells it from others in the same file."""

    points: tuple[LoggedPoint, ...]

    notes: tuple[str, ...] = ()
    """What a reader of the result must know about how it was read, a sentence each."""

    life: int | None = None
    """Which of the lives that later points replaced it is (`lives`), counted from 1; None for what survived."""

    @property
    def interval(self) -> int:
        """Usual distance of two points in steps, their median; 1 for a single point."""
        distances = [after.step - before.step for before, after in pairwise(self.points)]
        return statistics.median_low(distances) if distances else 1
