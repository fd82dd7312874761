from __future__ import annotations

import math
from itertools import combinations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from monitor.curves import epochs, fallen, hard_batches, level, mixture, raised, watched

from hpc_resume.monitor import MonitorSettings
from hpc_resume.monitor.divergence import BLOCK_STEPS, SETTLED_BLOCKS, DivergenceDetector, trend

AT = 2000
"""The index at which these losses begin to rise."""


def divergences(losses, **chosen):
    """Kind, onset and step of each verdict of the divergence detector alone."""
    verdicts = watched(losses, DivergenceDetector(MonitorSettings(**chosen)))
    assert {verdict.detector for verdict in verdicts} <= {"divergence"}
    return [(verdict.kind, verdict.onset_step, verdict.step) for verdict in verdicts]


@given(values=st.lists(st.one_of(st.floats(-10, 10), st.integers(-2, 2).map(float)), max_size=20))
def test_the_trend_is_mann_and_kendalls_in_deviations_of_its_own_chance(values):
    n = len(values)
    rises = sum(a < b for a, b in combinations(values, 2))
    falls = sum(a > b for a, b in combinations(values, 2))
    variance = n * (n - 1) * (2 * n + 5) / 18
    assert trend(values) == (pytest.approx((rises - falls) / math.sqrt(variance)) if n > 1 else 0.0)


def test_the_trend_of_sixteen_growing_values_is_five_deviations_and_has_the_sign_of_its_direction():
    growing = [math.sqrt(n) for n in range(16)]
    assert trend(growing) == pytest.approx(5.40, abs=0.01)
    assert trend(growing[::-1]) == -trend(growing)
    assert trend([2.5] * 16) == 0.0


def test_the_deviations_of_the_trend_of_noise_are_one():
    rng = Random(0)
    trends = [trend([rng.random() for _ in range(16)]) for _ in range(2000)]
    assert math.sqrt(sum(value * value for value in trends) / len(trends)) == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("share", "over", "latest_onset", "latest"),
    [
        pytest.param(0.03, 1000, 800, 1160, id="3 % over 1000 steps"),
        pytest.param(0.05, 1000, 600, 960, id="5 % over 1000 steps"),
        pytest.param(0.2, 1000, 200, 400, id="20 % over 1000 steps"),
        pytest.param(0.2, 400, 100, 260, id="20 % over 400 steps"),
    ],
)
def test_a_slow_rise_is_an_incident_that_began_when_it_left_the_best_level(seed, share, over, latest_onset, latest):
    [(kind, onset, step)] = divergences(raised(fallen(AT + 1300, seed=seed), AT, share, over))
    assert kind == "incident"
    assert onset % BLOCK_STEPS == 1
    assert AT < onset <= AT + latest_onset
    assert onset < step <= AT + latest


@pytest.mark.parametrize("seed", range(3))
def test_three_per_cent_over_a_thousand_steps_are_seen_by_no_other_detector(seed):
    losses = raised(fallen(AT + 1200, seed=seed), AT, 0.03, over=1000)
    assert {verdict.detector for verdict in watched(losses)} == {"divergence"}


@pytest.mark.parametrize("seed", range(2))
def test_a_rise_by_less_than_the_least_share_is_none(seed):
    losses = raised(fallen(AT + 1200, seed=seed), AT, 0.03, over=600)
    assert divergences(losses, divergence_min_rise=0.04) == []
    assert len(divergences(losses)) == 1


@pytest.mark.parametrize("seed", range(2))
def test_a_loss_that_never_fell_has_a_best_level_where_it_is_far_from_zero(seed):
    assert len(divergences(raised(level(AT + 1200, seed=seed), AT, 0.2, over=1000))) == 1
    assert divergences(raised(level(AT + 1200, noise=0.8, seed=seed), AT, 1.0, over=1000)) == []


@pytest.mark.parametrize("seed", range(3))
def test_noise_hard_batches_and_waves_of_the_data_are_no_divergences(seed):
    assert divergences(fallen(3000, noise=0.1, seed=seed)) == []
    assert divergences(hard_batches(3000, Random(seed))) == []
    assert divergences(mixture(3000, Random(seed))) == []


@pytest.mark.parametrize("seed", range(3))
def test_drops_at_epoch_boundaries_and_the_slow_rises_between_them_are_none(seed):
    assert divergences(epochs(4000, Random(seed))) == []


def test_slow_rises_that_are_only_recorded_are_near_misses():
    losses = raised(fallen(AT + 600), AT, 0.2, over=400)
    acted, recorded = divergences(losses), divergences(losses, slow_rises="record")
    assert [entry[0] for entry in acted + recorded] == ["incident", "near_miss"]
    assert acted[0][1:] == recorded[0][1:]


@pytest.mark.parametrize("seed", range(2))
def test_what_climbs_without_a_trend_becomes_the_best_level_and_the_next_rise_is_from_there(seed):
    steps = AT + (SETTLED_BLOCKS + 4) * BLOCK_STEPS
    losses = raised(fallen(steps + 1500, seed=seed), AT, 0.025)
    detector = DivergenceDetector(MonitorSettings())
    assert watched(losses[: AT + 10 * BLOCK_STEPS], detector) == []
    assert detector.pending
    assert watched(losses[AT + 10 * BLOCK_STEPS : steps], detector, first=AT + 10 * BLOCK_STEPS) == []
    assert not detector.pending
    [again] = watched(raised(losses, steps + 200, 0.1, over=800)[steps:], detector, first=steps)
    assert again.onset_step > steps + 200
    assert again.numbers["best"] == pytest.approx(2.5 * 1.025, abs=0.02)


def test_a_climb_is_called_once_and_one_that_comes_back_leaves_nothing_pending():
    detector = DivergenceDetector(MonitorSettings())
    losses = raised(fallen(AT + 1600), AT, 0.2, over=400, until=AT + 700)
    assert len(watched(losses, detector)) == 1
    assert not detector.pending


def test_the_verdict_names_levels_and_numbers():
    [verdict] = watched(raised(fallen(AT + 600), AT, 0.2, over=400), DivergenceDetector(MonitorSettings()))
    assert verdict.onset_position == 8 * (verdict.onset_step - 1)
    assert verdict.position == 8 * verdict.step
    assert verdict.numbers["best"] == pytest.approx(2.5, abs=0.02)
    assert verdict.numbers["trend"] > 3.0
    assert verdict.numbers["blocks"] == (verdict.step - verdict.onset_step + 1) / BLOCK_STEPS
    assert verdict.severity > 0.5
    assert verdict.may_recover
    assert f"since step {verdict.onset_step}" in verdict.message


def test_it_says_nothing_in_the_first_steps_nor_at_the_end():
    detector = DivergenceDetector(MonitorSettings())
    assert watched(raised(fallen(700), 300, 0.5, over=300), detector) == []
    assert detector.close(None) is None


def test_a_long_patience_with_spikes_is_waited_out():
    losses = raised(fallen(AT + 1000), AT, 0.2, over=1000)
    [(_, onset, step)] = divergences(losses, spike_patience_steps=300)
    [(_, same, sooner)] = divergences(losses)
    assert onset == same
    assert sooner - onset + 1 < 300 <= step - onset + 1 < 300 + BLOCK_STEPS


def test_a_rollback_drops_the_climb_and_keeps_the_best_level():
    detector = DivergenceDetector(MonitorSettings())
    losses = raised(fallen(AT + 900), AT, 0.2, over=400)
    watched(losses[: AT + 150], detector)
    assert detector.pending
    best = detector.state_dict()["best"]
    detector.rewound()
    assert not detector.pending
    assert detector.state_dict()["best"] == best
    # What is still high is seen again, since then.
    [verdict] = watched(losses[AT + 150 :], detector, first=AT + 150)
    assert verdict.onset_step > AT + 128
