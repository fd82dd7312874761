"""What comes of the trials of disks.py: told by a process that has torch to one that has not."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Found:
    """What came of a trial."""

    exit_code: int
    saved: list[int]
    """Steps of the checkpoints in force."""
    failed: list[tuple[int, str]]
    """Step and message of each failed save."""
    steps_trained: int
    left: list[str]
    """All that lies among the checkpoints and is not a committed one."""
    resumed: list[int]
    attempts: list[str]
    """How each attempt ended."""
    quarantined: list[tuple[str, str]]
    seconds: float
