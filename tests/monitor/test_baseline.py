from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_resume.monitor.baseline import NORMAL_SCALE, Baseline, Point

LOSSES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40)


def filled(losses: list[float], size: int) -> Baseline:
    baseline = Baseline(size)
    for step, loss in enumerate(losses):
        baseline.add(Point(step, 8 * step, loss))
    return baseline


@given(losses=LOSSES, size=st.integers(1, 20))
def test_median_and_deviation_are_those_of_the_newest_losses(losses, size):
    baseline = filled(losses, size)
    kept = losses[-size:]
    median = statistics.median(kept)
    assert baseline.median() == pytest.approx(median, rel=1e-12, abs=1e-300)
    exact = sorted(abs(loss - baseline.median()) for loss in kept)[len(kept) // 2]
    assert baseline.deviation(baseline.median()) == NORMAL_SCALE * exact


@given(losses=LOSSES, size=st.integers(1, 20))
def test_dropping_the_newest_points_undoes_adding_them(losses, size):
    baseline = filled(losses, size)
    before = baseline.median()
    room = Baseline(size + 2)
    for point in [Point(int(step), int(position), loss) for step, position, loss in baseline.to_list()]:
        room.add(point)
    room.add(Point(1000, 8000, 3.0))
    room.add(Point(1001, 8008, -3.0))
    assert room.drop_newest() == Point(1001, 8008, -3.0)
    assert room.drop_newest() == Point(1000, 8000, 3.0)
    assert room.median() == before
    assert room.to_list() == baseline.to_list()


@given(losses=LOSSES, size=st.integers(1, 20), smaller=st.integers(1, 20))
def test_a_list_of_points_loads_into_any_size_and_keeps_the_newest(losses, size, smaller):
    rows = filled(losses, size).to_list()
    assert Baseline.from_list(smaller, rows).to_list() == rows[-smaller:]
