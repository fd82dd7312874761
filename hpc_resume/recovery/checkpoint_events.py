"""What can happen to a checkpoint, from its save to its end; part of `events`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A committed checkpoint: where it stands in the training."""

    name: str
    step: int
    position: int
    branch: int
    save_number: int
    parent: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointCommitted:
    """A manifest was renamed into place."""

    attempt: int
    checkpoint: Checkpoint
    seconds: float = 0.0
    """From the beginning of the save to its commit."""
    blocked_s: float = 0.0
    """How long training waited for it; 0 in journals from before saves went on beside the training."""

    @property
    def waited_s(self) -> float:
        """How long training waited for it."""
        return self.blocked_s or self.seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointAdopted:
    """A committed checkpoint without a record was found by the next claim."""

    checkpoint: Checkpoint


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointCertified:
    """Enough healthy steps followed this checkpoint."""

    name: str
    step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointRejected:
    """A checkpoint could not be verified or loaded."""

    name: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointQuarantined:
    """A checkpoint was set aside by renaming."""

    name: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointDeleted:
    """A checkpoint that nothing needs any more is about to be deleted; whoever finds it on the disk finishes that."""

    name: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointConverted:
    """A checkpoint of `before` ranks was loaded by `now` ranks: what follows is continuous, not exact.

    With ZeRO 1 to 3 it was converted for that, once.
    """

    attempt: int
    name: str
    before: int
    now: int
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class IntervalChosen:
    """From here on a checkpoint is due every `steps` steps, and why; with the numbers behind it."""

    attempt: int
    steps: int
    message: str
    numbers: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class SaveFailed:
    """A checkpoint could not be written; training went on."""

    attempt: int
    step: int
    message: str
