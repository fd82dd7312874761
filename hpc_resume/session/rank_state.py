"""What a checkpoint holds of one rank, beside DeepSpeed's state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from hpc_resume.data_order import Segment
from hpc_resume.errors import CheckpointError
from hpc_resume.monitor import Monitor
from hpc_resume.session import random_state
from hpc_resume.session.saver import Loaded


class Stateful(Protocol):
    """Anything of the user's whose state belongs into a checkpoint."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """Take the state back."""
        ...


class RankState:
    """Captures and restores this rank's random generators, monitor, and whatever else was registered."""

    def __init__(self, seed: int, rank: int, world_size: int, stateful: Mapping[str, Stateful]) -> None:
        """`stateful` is the user's, by names that stay the same."""
        self._seed = seed
        self._rank = rank
        self._world_size = world_size
        self._stateful = dict(stateful)

    def capture(self, step: int, position: int, monitor: Monitor) -> dict[str, Any]:
        """Return the state as it is now; parts of it may still change."""
        return {
            "step": step,
            "position": position,
            "random": random_state.capture(),
            "monitor": monitor.state_dict(),
            "stateful": {name: item.state_dict() for name, item in self._stateful.items()},
        }

    def begin(self, segments: tuple[Segment, ...]) -> None:
        """Seed the generators where nothing is loaded."""
        self._reseed(segments)

    def restore(self, loaded: Loaded, monitor: Monitor, segments: tuple[Segment, ...], step: int) -> str | None:
        """Put everything back; return what could not be, in words, the same on all ranks."""
        for name, item in self._stateful.items():
            if name in loaded.state["stateful"]:
                item.load_state_dict(loaded.state["stateful"][name])
        problem = None
        try:
            monitor.load_state_dict(loaded.state["monitor"])
        except CheckpointError as error:
            # Another version's. A monitor that must learn anew is better than no training.
            problem = str(error)
        # Last, as whatever came before may have drawn from them.
        random_state.restore(loaded.state["random"])
        if not loaded.own:
            # The generators are those of a rank that has drawn for other samples.
            self._reseed(segments, self._world_size, step)
        elif loaded.segments < len(segments):
            # Saved before the order changed: what is drawn from here on changes with it.
            self._reseed(segments)
        return problem

    def _reseed(self, segments: tuple[Segment, ...], *more: object) -> None:
        random_state.reseed("model", self._seed, self._rank, segments[-1].number if segments else 0, *more)
