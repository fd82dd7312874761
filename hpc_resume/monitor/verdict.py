"""What the monitor says about a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

VerdictKind = Literal["incident", "near_miss"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Something went wrong: since when, when it was noticed, and by which numbers."""

    kind: VerdictKind
    """`incident` must be acted on; `near_miss` passed by itself and is only recorded."""

    detector: str
    """Which detector speaks."""

    onset_step: int
    """First step that already belongs to the anomaly; never later than `step`."""

    onset_position: int
    """Samples consumed before the onset step: the suspect data begin here."""

    step: int
    """The step at which the verdict was reached."""

    position: int
    """Samples consumed after that step: the suspect data end here."""

    severity: float
    """How high it went, in its own limits: at 1 a single value is out of bounds, and one that is below was proved by
    many values. Always finite."""

    may_recover: bool
    """Whether the loss could still come back by itself; a lost weight can't."""

    message: str
    """One sentence with the numbers."""

    numbers: dict[str, float]
    """The numbers alone; all finite, so that strict JSON can hold them."""

    @property
    def is_incident(self) -> bool:
        """Whether it must be acted on."""
        return self.kind == "incident"
