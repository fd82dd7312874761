from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hpc_resume.monitor.forecast import FEW_VALUES, SHORT, Expectation, Forecast

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=SHORT + 1, max_size=60)


def taught(values, window=64):
    forecast = Forecast(window)
    for value in values:
        forecast.take(value)
    return forecast


def noisy(steps, level=2.5, noise=0.05, slope=0.0, seed=0):
    rng = Random(seed)
    return [level + slope * step + rng.gauss(0.0, noise) for step in range(steps)]


def test_the_first_error_it_knows_is_that_of_the_fifth_value():
    assert [taught([2.0] * count).known for count in range(8)] == [0, 0, 0, 0, 0, 1, 2, 3]


def test_it_knows_no_more_errors_than_its_window_holds():
    assert taught(noisy(200), window=50).known == 50


def test_a_steady_slope_is_expected_to_go_on_without_noise():
    expected = taught([5.0 - 0.01 * step for step in range(100)]).expect()
    assert expected.level == pytest.approx(4.0)
    assert expected.noise == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(("value", "unit"), [(2.5, 0.1), (0.0001, 0.0001), (3.25, 0.01)])
def test_values_that_are_all_alike_may_differ_by_a_unit_of_their_last_digit(value, unit):
    assert taught([value] * 40).expect() == pytest.approx((value, unit))


def test_values_that_are_mostly_alike_differ_by_their_smallest_difference_at_least():
    expected = taught([0.0001, 0.0001, 0.0001, 0.0002] * 20).expect()
    assert expected.noise >= 0.00005


@pytest.mark.parametrize("share", [0.05, 0.1])
def test_easy_batches_do_not_draw_the_level_down(share):
    rng = Random(7)
    forecast = taught(noisy(200))
    usual = forecast.expect().level
    for _ in range(2000):
        forecast.take(usual + rng.gauss(0.0, 0.02) - (0.3 if rng.random() < share else 0.0))
        assert forecast.expect().level > usual - 0.1


def test_a_loss_that_begins_to_rise_is_not_followed():
    values = noisy(100, noise=0.01)
    before = taught(values).expect().level
    after = taught([*values, *(2.5 + 0.1 * step for step in range(1, 7))]).expect().level
    assert after == pytest.approx(before, abs=0.03)


@pytest.mark.parametrize("seed", range(5))
def test_its_noise_is_about_that_of_the_values_and_of_its_own_medians(seed):
    expected = taught(noisy(500, noise=0.05, seed=seed), window=128).expect()
    assert 0.045 < expected.noise < 0.09
    assert expected.level == pytest.approx(2.5, abs=0.1)


@pytest.mark.parametrize("height", [1.0, 1e6, 1e150])
def test_a_lone_value_of_any_height_moves_the_level_by_less_than_the_noise(height):
    values = noisy(100)
    calm, hit = taught(values).expect(), taught([*values, 2.5 + height]).expect()
    assert abs(hit.level - calm.level) < calm.noise
    assert hit.noise == pytest.approx(calm.noise, rel=0.3)


def test_many_lone_high_values_are_expected_to_come_again():
    values = noisy(200)
    values[::12] = [3.5] * len(values[::12])
    assert taught(values).expect().noise > 3 * taught(noisy(200)).expect().noise


def test_few_known_values_make_the_noise_wider():
    values = noisy(SHORT + 5)
    errors = taught(values).state_dict()["errors"]
    bias = sorted(errors)[2]
    # Of five errors the tail is the largest one.
    plain = max(1.4826 * sorted(abs(error - bias) for error in errors)[2], (max(errors) - bias) / 1.645)
    assert taught(values).expect().noise == pytest.approx(plain * (1.0 + FEW_VALUES / 5))


@given(values=VALUES, power=st.integers(-20, 20))
def test_values_in_another_unit_give_the_same_expectation_in_that_unit(values, power):
    # Powers of two change no digit.
    unit = 2.0**power
    values = [round(value, 3) for value in values]
    expected = taught(values).expect()
    # Values that are all alike are known by their digits, which change.
    assume(len(set(taught(values).state_dict()["errors"])) > 1)
    assert taught([unit * value for value in values]).expect() == Expectation(
        unit * expected.level, unit * expected.noise
    )


@given(values=VALUES, later=VALUES, window=st.integers(1, 20))
def test_it_goes_on_from_its_saved_state(values, later, window):
    forecast, resumed = taught(values, window), Forecast(window)
    resumed.load_state_dict(json.loads(json.dumps(forecast.state_dict(), allow_nan=False)))
    for value in later:
        assert resumed.expect() == forecast.expect()
        forecast.take(value)
        resumed.take(value)
    assert resumed.state_dict() == forecast.state_dict()


def test_its_state_loads_into_a_shorter_window_and_keeps_the_newest_errors():
    long, short = taught(noisy(100), window=64), Forecast(10)
    short.load_state_dict(long.state_dict())
    assert short.state_dict()["errors"] == long.state_dict()["errors"][-10:]
