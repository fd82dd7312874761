"""What can be done about it: decisions are values that a driver obeys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Action = Literal[
    "launch",  # start the workers, in this claim
    "rollback",  # load another checkpoint in the running processes
    "requeue",  # leave; the same job goes back to the queue and the next claim launches
    "continue",  # nothing to do but to know it
    "stop",  # for good
]
StopOutcome = Literal["finished", "failed", "cancelled", "stopped"]
Budget = Literal["loss", "crash", "node", "save", "idle"]

RULES: dict[str, str] = {
    "first start": "A run without progress starts at the beginning.",
    "resubmitted": "A person sent the run again: it goes on from its newest checkpoint, with full budgets.",
    "loss incident": "Resume from the newest certified checkpoint before the onset, deeper on each repeat without "
    "progress; the samples that are left get a new order.",
    "crash": "Start again from the newest checkpoint; the same samples in the same order.",
    "same crash twice": "The same failure twice with no new checkpoint between: stop, it will happen again.",
    "same crash, other node": "The same failure twice with no new checkpoint between, on the same node, where others "
    "can be had: once more, without that node.",
    "port taken": "The ranks could not meet where they were told to: at once again, at another port.",
    "hang": "Kill the silent ranks and start again from the newest checkpoint, same order.",
    "node lost": "Start again from the newest checkpoint; a new order if `perturb_on` names `node`.",
    "out of memory": "Once more to confirm, then stop.",
    "out of time": "Saved at a step edge and requeued; stops only if that happens again and again without a step.",
    "preempted": "Saved at a step edge and requeued; stops only if that happens again and again without a step.",
    "asked to stop": "Saved at a step edge; stays stopped until somebody resubmits it.",
    "cancelled": "A person ended the run; nothing brings it back by itself.",
    "input": "Settings or data cannot be used as they are; trying again would not help.",
    "checkpoint rejected": "Set it aside and load the next older one.",
    "no checkpoint left": "Nothing that was saved can be loaded: stop, and never start from scratch silently.",
    "rehearsal": "A rollback on request: all ranks load the newest checkpoint in the running processes, same order.",
    "save failed": "Go on training and save again later.",
    "saves keep failing": "Stop while the newest checkpoint is not too old.",
    "budget spent": "Too many of the same kind without progress: stop.",
    "finished": "The last step was reached.",
}
"""Name and sentence of every rule that a decision can carry."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """From where and how the training goes on.

    A `perturb` plan gives the samples from `position` on a new order; its segment carries the decision's number.
    """

    checkpoint: str | None
    step: int
    position: int
    branch: int
    perturb: bool = False
    window: tuple[int, int] | None = None
    lr_factor: float = 1.0
    avoid_nodes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """One decision, the rule it came from, and the budget it weighed."""

    number: int
    action: Action
    rule: str
    reason: str
    plan: Plan | None = None
    outcome: StopOutcome | None = None
    budget: Budget | None = None
    used: int = 0
    suspect_after: int | None = None
    """Checkpoints after this step are suspect, where there is no plan that says so."""

    def __post_init__(self) -> None:
        """Hold the shape: a way to go on has a plan, a stop has an outcome."""
        if (self.plan is not None) != (self.action in ("launch", "rollback", "requeue")):
            raise ValueError(f"a decision to {self.action} must {'not ' if self.plan else ''}carry a plan")
        if (self.outcome is not None) != (self.action == "stop"):
            raise ValueError(f"a decision to {self.action} must {'not ' if self.outcome else ''}carry an outcome")
