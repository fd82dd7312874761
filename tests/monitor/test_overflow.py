from __future__ import annotations

import json
from random import Random

import pytest
from monitor.curves import divergence_from_reference, level, memorised, observed, watched

from hpc_resume.monitor import MonitorSettings
from hpc_resume.monitor.overflow import SCALES, OverflowDetector


def overflows(losses, log=None, **chosen):
    """Onset and step of each verdict of the overflow detector alone."""
    verdicts = watched(losses, OverflowDetector(MonitorSettings(**chosen)), **(log or {}))
    assert all(verdict.is_incident and verdict.detector == "overflow" for verdict in verdicts)
    return [(verdict.onset_step, verdict.step) for verdict in verdicts]


def scales_said(scales, detector=None):
    detector = detector or OverflowDetector(MonitorSettings())
    answers = [detector.observe(observed(index, 2.5123, loss_scale=scale)) for index, scale in enumerate(scales)]
    return [(verdict.onset_step, verdict.step) for verdict in answers if verdict is not None]


@pytest.mark.parametrize(
    ("losses", "log", "expected"),
    [
        pytest.param(level(200) + [0.0] * 30, {}, [(201, 210)], id="after many values"),
        pytest.param([2.5123, *[0.0] * 10], {"every": 10}, [(20, 40)], id="after one value of a log of every tenth"),
        pytest.param([11.0625] * 10 + [0.0] * 30, {}, [(11, 20)], id="after as many steps as its patience"),
        pytest.param([11.0625] * 9 + [0.0] * 30, {}, [], id="after fewer"),
        pytest.param(level(50) + [-0.0] * 12, {}, [(51, 60)], id="at minus zero"),
        pytest.param(level(50, loss=-3.0) + [0.0] * 12, {}, [(51, 60)], id="after negative losses"),
        pytest.param(level(50) + [0.0] * 9 + level(50), {}, [], id="for less than its patience"),
        pytest.param(level(50) + [0.0, 2.5] * 30, {}, [], id="now and then"),
        pytest.param(level(50) + [0.1] * 40, {}, [], id="at another value"),
        pytest.param([0.0] * 100, {}, [], id="from the first step on"),
    ],
)
def test_a_loss_that_is_stuck_at_exactly_zero_is_an_incident_since_its_first_zero(losses, log, expected):
    assert overflows(losses, log) == expected


def test_a_nan_between_the_zeros_does_not_start_them_anew():
    assert overflows(level(50) + [0.0] * 5 + [float("nan")] * 2 + [0.0] * 5) == [(51, 60)]


def test_zeros_are_called_once_for_each_time_that_the_loss_gets_stuck():
    losses = level(50) + [0.0] * 40 + level(50) + [0.0] * 40
    assert overflows(losses) == [(51, 60), (141, 150)]


@pytest.mark.parametrize(("patience", "step"), [(1, 53), (3, 53), (25, 75)])
def test_the_patience_is_counted_in_steps_and_in_three_values_at_least(patience, step):
    assert overflows(level(50) + [0.0] * 40, zero_patience_steps=patience) == [(51, step)]


@pytest.mark.parametrize(
    "losses",
    [
        pytest.param([0.0] * 6 + [0.0001, 0.0, 0.0002, 0.0001] + [0.0] * 40, id="a log of GRPO begins with zeros"),
        pytest.param([0.0032, 0.0028, 0.0035] * 10 + [0.0] * 40, id="so small that four digits may round it away"),
        pytest.param([0.7 * 0.8**n for n in range(60)] + [0.0] * 40, id="it fell to zero by itself"),
        pytest.param([2.5, 2.4, 2.6] * 10 + [0.0] * 40, id="a log of one digit"),
    ],
)
def test_a_loss_that_may_well_be_zero_is_no_sign(losses):
    assert overflows(losses) == []


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("shape", [divergence_from_reference, memorised])
def test_rounded_logs_of_losses_near_zero_are_no_sign(shape, seed):
    losses = [round(loss, 4) for loss in shape(400, Random(seed))]
    assert overflows(losses) == []


def test_the_verdict_says_what_the_loss_was():
    [verdict] = watched([2.5123] * 10 + [0.0] * 10, OverflowDetector(MonitorSettings()))
    assert (verdict.onset_position, verdict.position) == (80, 160)
    assert verdict.numbers == {"zeros": 10.0, "before": 2.5123}
    assert verdict.severity == 1.0
    assert not verdict.may_recover
    assert "exactly 0 since step 11 and was 2.5123 before" in verdict.message


@pytest.mark.parametrize(
    ("losses", "onset"),
    [
        pytest.param([*level(50), 0.0], 51, id="with a zero"),
        pytest.param(level(50) + [0.0] * 20, None, id="with zeros that were called"),
        pytest.param(level(50), None, id="without one"),
        pytest.param([0.0] * 9, None, id="with zeros from the first step on"),
    ],
)
def test_training_that_ends_with_a_zero_that_should_not_be_ends_with_an_incident(losses, onset):
    detector = OverflowDetector(MonitorSettings())
    watched(losses, detector)
    assert detector.pending == (losses[-1] == 0.0 and losses[0] != 0.0)
    verdict = detector.close(observed(len(losses) - 1, losses[-1]))
    assert (verdict and verdict.onset_step) == onset
    if verdict is not None:
        assert verdict.is_incident
        json.dumps(verdict.numbers, allow_nan=False)


CALM = [2.0**16] * 100
"""So long that the search for the first scale is over."""


@pytest.mark.parametrize(
    ("scales", "expected"),
    [
        pytest.param(CALM + [2.0 ** (16 - n) for n in range(1, 20)], [(101, 110)], id="halved at each step"),
        pytest.param(CALM + [2.0 ** (16 - n // 6) for n in range(6, 120)], [(101, 155)], id="halved at each sixth"),
        pytest.param(CALM + [2.0 ** (16 - n) for n in range(1, 10)] + [2.0**7] * 90, [], id="halved nine times"),
        pytest.param(CALM + [2.0 ** (16 - n // 7) for n in range(7, 170)], [], id="halved at each seventh"),
        pytest.param([2.0 ** max(10, 40 - n) for n in range(100)], [], id="the search for the first scale"),
        pytest.param([2.0 ** (16 + n // 100 % 2) for n in range(900)], [], id="grows and is halved"),
        pytest.param([None] * 200, [], id="none"),
        pytest.param([0.0, float("nan"), float("inf"), -1.0] * 50, [], id="nonsense"),
    ],
)
def test_a_loss_scale_that_collapses_is_an_incident_and_one_that_searches_is_none(scales, expected):
    assert scales_said(scales) == expected


def test_a_collapse_is_called_once_and_counted_from_what_it_left():
    scales = CALM + [2.0**6] * SCALES + [2.0**-4] * SCALES
    assert scales_said(scales) == [(101, 101), (101 + SCALES, 101 + SCALES)]


def test_the_search_is_over_also_after_a_resume():
    before, resumed = OverflowDetector(MonitorSettings()), OverflowDetector(MonitorSettings())
    scales_said(CALM, before)
    resumed.load_state_dict(json.loads(json.dumps(before.state_dict(), allow_nan=False)))
    assert scales_said([2.0**6], resumed) == [(1, 1)]


def test_the_smallest_scale_there_is_gives_finite_numbers():
    detector = OverflowDetector(MonitorSettings())
    answers = [detector.observe(observed(n, 2.5, loss_scale=1e308 if n < 100 else 5e-324)) for n in range(101)]
    json.dumps([answers[-1].severity, answers[-1].numbers], allow_nan=False)
    # Another stretch of data may do with a usual scale.
    assert answers[-1].may_recover


def test_a_rollback_drops_the_zeros_and_the_scales():
    detector = OverflowDetector(MonitorSettings())
    scales_said(CALM, detector)
    watched([0.0] * 4, detector, first=100)
    assert detector.pending
    detector.rewound()
    assert not detector.pending
    assert scales_said([2.0**4] * 20, detector) == []
