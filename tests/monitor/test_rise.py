from __future__ import annotations

import json
import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_resume.monitor.forecast import Forecast
from hpc_resume.monitor.rise import DRIFT, ENOUGH, LARGEST, LIMIT, SETTLED, Point, RiseTest

WINDOW, KNOWN = 64, 20
CALM_STEPS = 64
ENDING = [1.98] * 4
"""Below the level, as a calm curve may happen to end high."""


def calm_values(steps=CALM_STEPS - 4, seed=0):
    rng = Random(seed)
    return [rng.gauss(2.0, 0.01) for _ in range(steps)]


def fresh(noise_of=lambda expected: expected.noise, patience=10):
    return RiseTest(window=WINDOW, known=KNOWN, patience=patience, noise_of=noise_of)


def outcomes(test, values, first=0, **bounds):
    return [test.observe(Point(first + i + 1, 8 * (first + i), value), **bounds) for i, value in enumerate(values)]


def after_calm(seed=0, **how):
    test = fresh(**how)
    assert set(outcomes(test, calm_values(seed=seed) + ENDING)) <= {"calm", "watched", "back"}
    assert test.excursion is None
    return test


def bounds(test):
    """The level that the test expects, and its noise."""
    probe = fresh()
    probe.load_state_dict(test.state_dict())
    probe.observe(Point(1000, 8000, 1e9))
    return probe.excursion.level, probe.excursion.noise


def risen(test, deviations, count):
    """Outcomes of `count` values so many deviations above the level."""
    level, noise = bounds(test)
    return outcomes(test, [level + deviations * noise] * count, first=CALM_STEPS)


@given(seed=st.integers(0, 1000), height=st.floats(0.0, 1.7e308))
def test_a_lone_high_value_of_any_height_confirms_nothing(seed, height):
    test = after_calm(seed)
    level, _ = bounds(test)
    spoken = outcomes(test, [2.0 + height, *[level] * 4], first=CALM_STEPS)
    assert "confirmed" not in spoken
    assert test.excursion is None


@given(seed=st.integers(0, 1000), height=st.floats(1.0, 1.7e308))
def test_two_out_of_bounds_confirm_nothing_and_a_third_does(seed, height):
    assert outcomes(after_calm(seed), [2.0 + height] * 3, first=CALM_STEPS) == ["watched", "watched", "confirmed"]


def test_two_confirm_where_less_evidence_is_enough():
    test = after_calm()
    assert outcomes(test, [9.0, 9.0], first=CALM_STEPS, enough=6.0) == ["watched", "confirmed"]


def test_one_gross_value_confirms_where_that_is_asked_for():
    test = after_calm()
    level, noise = bounds(test)
    assert outcomes(test, [level + 23.9 * noise], first=CALM_STEPS, gross=24.0) == ["watched"]
    assert outcomes(after_calm(), [level + 24.1 * noise], first=CALM_STEPS, gross=24.0) == ["confirmed"]


@pytest.mark.parametrize("deviations", [2.5, 3.0, 4.0, 5.0])
def test_slightly_high_values_confirm_once_they_are_many(deviations):
    needed = math.ceil(ENOUGH / (deviations - DRIFT))
    spoken = risen(after_calm(), deviations, needed + 1)
    assert spoken.index("confirmed") in (needed - 1, needed)
    assert needed > 3


def test_a_value_at_the_drift_opens_nothing():
    test = after_calm()
    assert risen(test, DRIFT - 0.01, 20) == ["calm"] * 20


def test_the_excursion_begins_with_its_first_value_and_keeps_level_and_noise():
    test = after_calm()
    level, noise = bounds(test)
    for index, deviations in enumerate([2.5, 3.0, 40.0, 1e6, 3.0]):
        outcomes(test, [level + deviations * noise], first=CALM_STEPS + index)
        assert (test.excursion.level, test.excursion.noise) == (level, noise)
        assert (test.excursion.onset_step, test.excursion.onset_position) == (CALM_STEPS + 1, 8 * (CALM_STEPS))
        assert test.excursion.newest == pytest.approx(deviations)
    assert test.excursion.peak == level + 1e6 * noise
    assert test.excursion.limit == level + LIMIT * noise


def test_a_confirmed_rise_is_back_after_three_values_at_the_level_however_long_it_was():
    test = after_calm()
    level, _ = bounds(test)
    outcomes(test, [9.0] * 30, first=CALM_STEPS)
    assert outcomes(test, [level] * 3, first=CALM_STEPS + 30) == ["watched", "watched", "back"]
    assert test.excursion is None
    assert test.last.confirmed
    assert test.last.values == 32


def forecast_of(values):
    forecast = Forecast(WINDOW)
    for value in values:
        forecast.take(value)
    return forecast.state_dict()


def test_an_excursion_that_was_no_rise_enters_the_forecast_when_it_closes():
    test = after_calm()
    level, _ = bounds(test)
    before = test.state_dict()["forecast"]
    outcomes(test, [9.0, 9.0], first=CALM_STEPS)
    assert test.state_dict()["forecast"] == before
    assert outcomes(test, [level] * 4, first=CALM_STEPS + 2) == [*["watched"] * 3, "back"]
    assert test.state_dict()["forecast"] == forecast_of([*calm_values(), *ENDING, 9.0, 9.0, *[level] * 4])


def test_a_confirmed_rise_never_enters_the_forecast():
    test = after_calm()
    level, _ = bounds(test)
    outcomes(test, [9.0] * 10, first=CALM_STEPS)
    assert outcomes(test, [level] * 3, first=CALM_STEPS + 10)[-1] == "back"
    # Only the value that ended it.
    assert test.state_dict()["forecast"] == forecast_of([*calm_values(), *ENDING, level])


def test_what_stays_up_is_the_new_level_after_so_many_values():
    test = after_calm()
    new = [3.0 + value - 2.0 for value in calm_values(SETTLED + 40, seed=7)]
    spoken = outcomes(test, new, first=CALM_STEPS)
    assert spoken[2] == "confirmed"
    assert spoken.index("settled") == SETTLED - 1
    assert "confirmed" not in spoken[SETTLED:]
    assert bounds(test)[0] == pytest.approx(3.0, abs=0.05)


def test_what_is_neither_back_nor_confirmed_settles_as_well():
    test = after_calm()
    spoken = risen(test, DRIFT + 0.05, SETTLED)
    assert spoken == ["watched"] * (SETTLED - 1) + ["settled"]
    assert not test.last.confirmed


def test_a_long_patience_is_waited_out_twice_before_anything_settles():
    test = after_calm(patience=40)
    spoken = outcomes(test, [9.0] * 80, first=CALM_STEPS)
    assert spoken == ["watched", "watched", "confirmed", *["watched"] * 76, "settled"]


def test_what_was_not_confirmed_when_it_is_forgotten_enters_the_forecast():
    test = after_calm()
    test.forget()
    assert test.state_dict()["forecast"] == forecast_of([*calm_values(), *ENDING])
    outcomes(test, [9.0, 9.0], first=CALM_STEPS)
    test.forget()
    assert test.excursion is None
    assert test.state_dict()["forecast"] == forecast_of([*calm_values(), *ENDING, 9.0, 9.0])


def test_what_was_confirmed_when_it_is_forgotten_does_not():
    test = after_calm()
    outcomes(test, [9.0] * 5, first=CALM_STEPS)
    test.forget()
    assert test.excursion is None
    assert test.state_dict()["forecast"] == forecast_of([*calm_values(), *ENDING])
    # And the next rise is judged from its own first value.
    assert outcomes(test, [9.0] * 3, first=100) == ["watched", "watched", "confirmed"]
    assert test.excursion.onset_step == 101


def test_bounds_that_open_widened_are_so_many_times_as_far_and_stay_so():
    plain, wide = after_calm(), after_calm()
    level, noise = bounds(plain)
    assert outcomes(plain, [level + 3 * noise], first=CALM_STEPS) == ["watched"]
    assert outcomes(wide, [level + 3 * noise], first=CALM_STEPS, widened=2.0) == ["calm"]
    outcomes(wide, [9.0], first=CALM_STEPS + 1, widened=2.0)
    opened = wide.excursion.noise
    assert opened > 1.5 * noise
    outcomes(wide, [9.0], first=CALM_STEPS + 2, widened=1.0)
    assert wide.excursion.noise == opened


@pytest.mark.parametrize("noise", [0.0, math.inf, 1e200], ids=["none", "infinite", "absurd"])
def test_without_a_usable_noise_nothing_is_judged(noise):
    test = fresh(noise_of=lambda _: noise)
    assert set(outcomes(test, [*calm_values(), 9.0, 9.0, 9.0, 9.0])) == {"calm"}


def test_nothing_is_judged_before_enough_errors_are_known():
    calm = [2.0, 2.1] * 20
    assert outcomes(fresh(), [*calm[: KNOWN + 3], 9.0])[-1] == "calm"
    assert outcomes(fresh(), [*calm[: KNOWN + 4], 9.0])[-1] == "watched"


def test_noise_as_small_as_a_float_can_be_leaves_every_number_finite():
    test = fresh(noise_of=lambda _: 5e-324)
    outcomes(test, [*[0.0] * 30, 1e300])
    json.dumps(test.state_dict(), allow_nan=False)
    assert test.excursion.newest == test.excursion.height == LARGEST


@given(seed=st.integers(0, 1000), count=st.integers(0, 70), height=st.floats(0.0, 2.0), cut=st.integers(0, 160))
def test_it_goes_on_from_its_saved_state(seed, count, height, cut):
    rng = Random(seed)
    values = [*calm_values(seed=seed), *(2.0 + height * rng.random() for _ in range(count)), *calm_values(30, seed + 1)]
    cut = min(cut, len(values))
    test, resumed = fresh(), fresh()
    outcomes(test, values[:cut])
    resumed.load_state_dict(json.loads(json.dumps(test.state_dict(), allow_nan=False)))
    assert outcomes(resumed, values[cut:], first=cut) == outcomes(test, values[cut:], first=cut)
    assert resumed.state_dict() == test.state_dict()
