"""What an incident does to the order of the samples, and how a resume changes that."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Window:
    """The samples that were in the air at a loss incident: positions from `start` to just before `end`.

    Positions count samples over all ranks and epochs, in the order before the segment that has the window.
    """

    start: int
    """Position of the first sample, usually that of the onset less a margin."""

    end: int
    """Position after the last sample, usually where the incident was detected."""

    drop: bool = False
    """Leave these samples out of their epoch instead of holding them back to its end."""

    def __post_init__(self) -> None:
        """Refuse what can't mean anything."""
        if not 0 <= self.start < self.end:
            raise ValueError(f"window is [{self.start}, {self.end}); it must start at 0 or later and before its end")


@dataclass(frozen=True, slots=True)
class Segment:
    """From where on, and how, the order of the remaining samples was changed."""

    start: int
    """Position of the first sample that may differ from the order before."""

    number: int
    """What tells this segment from every other of the run; it goes into the key of the new order."""

    window: Window | None = None
    """Samples that come last in their epoch, or not at all."""

    def __post_init__(self) -> None:
        """Refuse what can't mean anything."""
        if self.start < 0:
            raise ValueError(f"segment starts at {self.start}; it must start at 0 or later")
        if self.number < 1:
            raise ValueError(f"segment has number {self.number}; it must be 1 or more (0 is the order without any)")
