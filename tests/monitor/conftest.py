from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from hpc_resume.monitor import Monitor, MonitorSettings, Observation, Verdict

BATCH = 8
"""Samples in each step of these curves."""


def _observed(index: int, loss: float, **fields: Any) -> Observation:
    return Observation(step=index + 1, start_position=index * BATCH, position=(index + 1) * BATCH, loss=loss, **fields)


def _watched(losses: Sequence[float], monitor: Monitor | None = None, first: int = 0) -> list[Verdict]:
    monitor = monitor or Monitor(MonitorSettings())
    spoken = [monitor.observe(_observed(first + index, loss)) for index, loss in enumerate(losses)]
    return [verdict for verdict in spoken if verdict is not None]


def _healthy(steps: int, level: float = 2.5, noise: float = 0.02, drop: float = 0.0, seed: int = 0) -> list[float]:
    rng = random.Random(seed)
    return [level - drop * index / steps + rng.gauss(0.0, noise) for index in range(steps)]


@pytest.fixture(scope="session")
def observed() -> Callable[..., Observation]:
    """`observed(index, loss, **fields)`: step index + 1, with 8 samples in each step."""
    return _observed


@pytest.fixture(scope="session")
def watched() -> Callable[..., list[Verdict]]:
    """`watched(losses, monitor=fresh, first=0)`: what the monitor says about the curve."""
    return _watched


@pytest.fixture(scope="session")
def healthy() -> Callable[..., list[float]]:
    """`healthy(steps, level=2.5, noise=0.02, drop=0, seed=0)`: a falling or level noisy curve."""
    return _healthy
