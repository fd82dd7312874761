from __future__ import annotations

import json
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from monitor.curves import observed

from hpc_resume.monitor.blocks import Blocks
from hpc_resume.monitor.rise import LARGEST
from hpc_resume.monitor.settings import RATE_WINDOW_STEPS

NAN = math.nan


def taken(losses, size=4, blocks=None, first=0):
    blocks = blocks or Blocks(size)
    points = [blocks.take(observed(first + index, loss)) for index, loss in enumerate(losses)]
    return [tuple(point) for point in points if point is not None]


@given(losses=st.lists(st.floats(-1e6, 1e6).filter(bool), max_size=50), size=st.integers(1, 9))
def test_a_block_is_the_median_of_so_many_losses_named_after_the_first(losses, size):
    points = taken(losses, size)
    assert len(points) == len(losses) // size
    for number, (step, position, value) in enumerate(points):
        first = number * size
        assert (step, position) == (first + 1, 8 * first)
        assert value == pytest.approx(statistics.median(losses[first : first + size]), rel=1e-12, abs=1e-300)


def test_losses_that_are_not_finite_or_exactly_zero_are_left_out():
    assert taken([1.0, 0.0, NAN, 2.0, -0.0, math.inf, 3.0, -math.inf, 4.0, 5.0]) == [(1, 0, 2.5)]


def test_what_began_before_a_long_stretch_of_nan_is_no_block_any_more():
    assert taken([1.0, 2.0, *[NAN] * (RATE_WINDOW_STEPS - 4), 3.0, 4.0]) == [(1, 0, 2.5)]
    stretch = RATE_WINDOW_STEPS
    [(step, position, value)] = taken([1.0, 2.0, *[NAN] * stretch, 3.0, 4.0, 5.0, 6.0])
    assert (step, position, value) == (stretch + 3, 8 * (stretch + 2), 4.5)


def test_huge_losses_are_taken_for_large_ones():
    assert taken([1.7e308] * 4) == [(1, 0, LARGEST)]


@given(
    losses=st.lists(st.one_of(st.floats(), st.just(NAN), st.floats(0, 1)), max_size=150),
    cut=st.integers(0, 150),
    size=st.integers(1, 40),
)
def test_they_go_on_from_their_saved_state(losses, cut, size):
    blocks, resumed = Blocks(size), Blocks(size)
    taken(losses[:cut], blocks=blocks)
    resumed.load_state_dict(json.loads(json.dumps(blocks.state_dict(), allow_nan=False)))
    assert taken(losses[cut:], blocks=resumed, first=cut) == taken(losses[cut:], blocks=blocks, first=cut)
    assert resumed.state_dict() == blocks.state_dict()
