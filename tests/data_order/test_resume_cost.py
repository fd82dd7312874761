"""What it takes to go on at a position: counted in work, as no clock is the same everywhere.

`benchmarks/data_position.py` has the times.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from hpc_resume.data_order import DataOrder, Permutation, Segment, Window, rank_share
from hpc_resume.data_order.order import _epoch_order

MICRO_BATCH, WORLD_SIZE = 8, 64
POSITIONS = [10**power + 5000 for power in (4, 6, 9, 12, 18)]


def resume(num_samples: int, segments: tuple[Segment, ...], position: int) -> list[int]:
    """Do what a session does from a load to the first micro batch of its last rank."""
    order = DataOrder(num_samples, 1, segments)
    positions, _ = order.positions(position, MICRO_BATCH * WORLD_SIZE)
    share = rank_share(positions, WORLD_SIZE - 1, WORLD_SIZE, MICRO_BATCH)[0]
    return [order.sample_at(place) for place in share]


def incidents(count: int, position: int, drop: bool = False) -> tuple[Segment, ...]:
    """Return segments with windows that all act at `position`."""
    starts = range(position - 20 * count, position, 20)
    return tuple(Segment(start, number, Window(start + 1, start + 15, drop)) for number, start in enumerate(starts, 1))


def lines_run(work: Callable[[], object]) -> int:
    """Count the lines of `hpc_resume.data_order` that are run: a loop of any kind shows in it."""
    _epoch_order.cache_clear()
    count = 0

    def line(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        count += event == "line"
        return line

    def call(frame: FrameType, event: str, arg: Any) -> Any:
        return line if "hpc_resume/data_order" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("drop", [False, True], ids=["held windows", "dropped windows"])
@pytest.mark.parametrize("count", [0, 10, 100])
@pytest.mark.parametrize("num_samples", [10**6, 10**9])
def test_the_work_of_a_resume_does_not_grow_with_the_position(num_samples: int, count: int, drop: bool) -> None:
    work = [
        lines_run(lambda position=position: resume(num_samples, incidents(count, position, drop), position))
        for position in POSITIONS
    ]
    assert min(work) > 8 * MICRO_BATCH * (count + 1)
    # A permutation now and then needs a second round.
    assert max(work) < 1.1 * min(work)


def test_incidents_of_other_epochs_are_looked_at_once_not_for_each_sample() -> None:
    n, position = 10**6, 10**9 + 5000
    early = tuple(Segment(number * n, number, Window(number * n, number * n + 100)) for number in range(1, 101))
    more = lines_run(lambda: resume(n, early, position)) - lines_run(lambda: resume(n, (), position))
    assert more < 15 * len(early)


@pytest.mark.parametrize("count", [0, 1, 10, 100])
def test_each_sample_costs_one_permutation_per_incident_of_its_epoch(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    calls: list[int] = []
    original = Permutation.__call__

    def counted(self: Permutation, index: int) -> int:
        calls.append(index)
        return original(self, index)

    monkeypatch.setattr(Permutation, "__call__", counted)
    resume(10**6, incidents(count, 10**9 + 5000), 10**9 + 5000)
    assert len(calls) == MICRO_BATCH * (count + 1)


def test_windows_that_are_dropped_in_many_epochs_are_not_looked_at_again_one_by_one() -> None:
    n = 10**6
    segments = tuple(
        Segment(number * n, number, Window(number * n, number * n + 100, True)) for number in range(1, 101)
    )
    assert lines_run(lambda: DataOrder(n, 1, segments)) < 100 * 20
