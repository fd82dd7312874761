"""How much trouble a run may have, and what is done about it: the `recovery` section of the config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PerturbCause = Literal["loss", "node"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """What to do when something goes wrong."""

    preset: Literal["requeue"] = "requeue"
    """`requeue`: every loss incident and every failure sends the job back to the queue."""

    perturb_on: tuple[PerturbCause, ...] = ("loss", "node")
    """After which kind of incident the samples that are left get a new order; anything else replays exactly."""

    rollback_margin_steps: int = 5
    """A loss incident resumes from a checkpoint at least this many steps before its onset."""

    loss_budget: int = 4
    """Loss incidents in a row without progress before the run stops."""

    crash_budget: int = 3
    """Crashes and hangs in a row without progress before the run stops."""

    node_budget: int = 10
    """Lost nodes in a row without progress before the run stops."""

    save_budget: int = 5
    """Failed saves in a row before the run stops."""

    idle_budget: int = 10
    """Preemptions and ends of the job's time in a row without progress before the run stops."""

    def __post_init__(self) -> None:
        """Refuse what can't mean anything."""
        for name in (
            "loss_budget",
            "crash_budget",
            "node_budget",
            "save_budget",
            "idle_budget",
            "rollback_margin_steps",
        ):
            value = getattr(self, name)
            if value < 0:
                raise ValueError(f"recovery.{name} is {value}; it must be 0 or more")
        if len(set(self.perturb_on)) != len(self.perturb_on):
            raise ValueError(f"recovery.perturb_on is {list(self.perturb_on)}; it names a cause twice")
