from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_resume.monitor.window import NORMAL_SCALE, NORMAL_TAIL, TAIL, Window, last_digit

VALUES = st.lists(st.one_of(st.floats(-1e6, 1e6), st.integers(-3, 3).map(float)), min_size=1, max_size=60)
"""Also many equal ones."""


def straightforward_deviation(values, median):
    middle = sorted(abs(value - median) for value in values)[len(values) // 2]
    tail = sorted(values)[min(len(values) - 1, int(TAIL * len(values)))]
    apart = [abs(a - b) for a in values for b in values if a != b] if middle == 0 else []
    return max(NORMAL_SCALE * middle, (tail - median) / NORMAL_TAIL, min(apart, default=0.0))


@given(values=VALUES, size=st.integers(1, 30))
def test_median_and_deviation_are_those_of_the_newest_values(values, size):
    window, kept = Window(size, values), values[-size:]
    median = window.median()
    assert median == pytest.approx(statistics.median(kept), rel=1e-12, abs=1e-300)
    assert window.deviation(median) == straightforward_deviation(kept, median)


def test_values_that_are_mostly_equal_differ_by_their_smallest_difference_at_least():
    window = Window(10, [1.0, 1.0, 1.0, 1.0, 0.75, 0.5])
    assert window.deviation(1.0) == 0.25
    assert Window(10, [1.0] * 6).deviation(1.0) == 0.0


@pytest.mark.parametrize(("value", "unit"), [(2.5, 0.1), (0.0001, 0.0001), (-3.25, 0.01), (7.0, 0.1), (0.0, 0.0)])
def test_the_last_digit_of_a_value_has_a_weight(value, unit):
    assert last_digit(value) == pytest.approx(unit)


@given(values=VALUES, size=st.integers(1, 30))
def test_it_holds_no_more_values_than_its_size_and_the_newest_ones_in_their_order(values, size):
    window = Window(size)
    for count, value in enumerate(values, start=1):
        window.add(value)
        assert len(window) == min(count, size)
        assert window.to_list() == values[max(0, count - size) : count]


@given(values=VALUES, later=VALUES, size=st.integers(1, 30))
def test_a_window_made_from_the_list_of_another_goes_on_like_that_one(values, later, size):
    window = Window(size, values)
    copy = Window(size, window.to_list())
    for value in later:
        window.add(value)
        copy.add(value)
        assert copy.to_list() == window.to_list()
        median = window.median()
        assert copy.median() == median
        assert copy.deviation(median) == window.deviation(median)


def test_the_median_of_two_huge_values_is_finite():
    assert Window(2, [1.6e308, 1.7e308]).median() == pytest.approx(1.65e308)


def test_deviation_is_the_standard_deviation_of_normal_values():
    quantiles = statistics.NormalDist(7.0, 0.5).quantiles(1000)
    window = Window(1000, quantiles)
    assert window.deviation(window.median()) == pytest.approx(0.5, rel=0.01)


def test_values_with_a_long_upper_tail_deviate_more_than_their_middle_does():
    calm = [2.0 + 0.001 * (n % 10) for n in range(100)]
    with_tail = calm[:90] + [3.0] * 10
    middle = Window(100, calm)
    window = Window(100, with_tail)
    assert middle.deviation(middle.median()) < 0.01
    assert window.deviation(window.median()) == pytest.approx((3.0 - window.median()) / NORMAL_TAIL)
