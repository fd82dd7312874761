"""When state is saved, how, and what is kept of it: the `checkpoints` section of the config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hpc_resume.config.values import require_positive


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointConfig:
    """When state is saved, how, and what is kept of it."""

    interval_steps: int | Literal["auto"] = 100
    """Steps between two checkpoints; `auto` weighs what a save costs against what a failure loses."""

    failures_per_day: float = 1.0
    """How often a run fails here, as far as you know; `interval_steps: auto` corrects it by what it sees."""

    certify_after_steps: int = 50
    """Healthy steps that must follow a checkpoint before it counts as certified."""

    mode: Literal["async", "sync"] = "async"
    """`async`: training waits only for a copy of the state, and goes on while that is written; `sync`: until it is on
    the disk."""

    staging_dir: str | None = None
    """A folder on a fast disk of each node: `async` copies the state there instead of into host memory.

    Variables in it, like `$TMPDIR`, are those of the node."""

    verify: Literal["full", "quick"] = "full"
    """What is compared with the manifest before a load: `full` sizes and digests of all files, `quick` sizes only."""

    keep_last: int = 3
    """How many of the newest checkpoints are kept; those that may be needed as the way back are kept besides."""

    keep_every_steps: int | None = None
    """Checkpoints of steps that are a multiple of this are kept for good; null keeps none for that reason."""

    keep_quarantined: int = 3
    """How many of the newest checkpoints that were set aside are kept, for you to look at."""

    def __post_init__(self) -> None:
        """Refuse what can't mean anything."""
        interval = None if self.interval_steps == "auto" else self.interval_steps
        require_positive(
            "checkpoints",
            {
                "interval_steps": interval,
                "failures_per_day": self.failures_per_day,
                "keep_last": self.keep_last,
                "keep_every_steps": self.keep_every_steps,
            },
        )
        for name in ("certify_after_steps", "keep_quarantined"):
            if getattr(self, name) < 0:
                raise ValueError(f"checkpoints.{name} is {getattr(self, name)}; it must be 0 or more")
        if self.staging_dir is not None and self.mode == "sync":
            raise ValueError("checkpoints.staging_dir is set, but checkpoints.mode is sync, which has no use for it")
        if self.staging_dir is not None and not self.staging_dir.startswith(("/", "$")):
            raise ValueError(
                f"checkpoints.staging_dir is {self.staging_dir}; it must be an absolute path, or begin with a variable"
            )
