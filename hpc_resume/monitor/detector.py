"""What every detector offers, and the streak that several of them count."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from hpc_resume.monitor.observation import Observation
from hpc_resume.monitor.verdict import Verdict

State = dict[str, Any]
"""Bounded, strict JSON: strings, finite numbers, None, lists and dicts."""


class Detector(Protocol):
    """One way in which training can be seen to go wrong.

    It sees every optimizer step in order, and its answers depend on nothing but those and its settings, so that
    a detector whose state was saved and loaded goes on exactly like the unbroken one.
    """

    name: str
    """Under this name its verdicts and its state are filed; it never changes."""

    @property
    def pending(self) -> bool:
        """Whether an anomaly is being watched right now."""
        ...

    def observe(self, observation: Observation) -> Verdict | None:
        """Take in one step and say what is wrong, if anything is."""
        ...

    def close(self, last: Observation) -> Verdict | None:
        """Judge what was still being watched when training ended with the step `last`."""
        ...

    def rewound(self) -> None:
        """Drop what was being watched: training goes on from an older checkpoint, with other samples.

        What is known to be healthy stays known.
        """
        ...

    def state_dict(self) -> State:
        """Everything that later verdicts depend on."""
        ...

    def load_state_dict(self, state: State) -> None:
        """Go on from what `state_dict` returned."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Streak:
    """Bad steps in a row, none of them good."""

    step: int
    """The first of them."""

    start_position: int
    """Samples consumed before the first of them."""

    count: int = 1
    """How many there are."""

    @classmethod
    def extended(cls, streak: Streak | None, observation: Observation) -> Streak:
        """Return the streak with one more bad step; None starts a new one."""
        if streak is None:
            return cls(step=observation.step, start_position=observation.start_position)
        return replace(streak, count=streak.count + 1)

    @classmethod
    def loaded(cls, state: State | None) -> Streak | None:
        """Return the streak that `saved` described."""
        return None if state is None else cls(**state)

    @staticmethod
    def saved(streak: Streak | None) -> State | None:
        """Describe the streak in plain values."""
        return None if streak is None else asdict(streak)
