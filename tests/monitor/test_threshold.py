from __future__ import annotations

import json
import math

import pytest
from monitor.curves import observed, watched

from hpc_resume.monitor import MonitorSettings
from hpc_resume.monitor.threshold import ThresholdDetector


def spoken(losses, **settings):
    detector = ThresholdDetector(MonitorSettings(**settings))
    verdicts = [detector.observe(observed(index, loss)) for index, loss in enumerate(losses)]
    return [verdict for verdict in verdicts if verdict is not None]


def test_it_is_off_without_a_threshold():
    assert spoken([1e9, math.nan] * 10) == []


@pytest.mark.parametrize(
    ("losses", "onset_and_step"),
    [
        pytest.param([2, 6, 6, 6, 6], (2, 4), id="three in a row"),
        pytest.param([2, 6, 6, 2, 6, 6, 2], None, id="never three in a row"),
        pytest.param([2, 6, math.nan, 6], (2, 4), id="NaN does not reset the count"),
        pytest.param([math.nan, -math.inf, math.inf], (1, 3), id="non-finite alone"),
        pytest.param([5.0] * 10, None, id="at the threshold is not above it"),
    ],
)
def test_the_loss_must_stay_above_the_threshold_for_the_patience(losses, onset_and_step):
    verdicts = spoken(losses, loss_watchdog_threshold=5.0, loss_watchdog_patience=3)
    assert [(verdict.onset_step, verdict.step) for verdict in verdicts] == (
        [] if onset_and_step is None else [onset_and_step]
    )
    assert all(verdict.is_incident and verdict.detector == "threshold" for verdict in verdicts)


def test_a_run_that_stays_above_is_named_once_until_it_was_below():
    verdicts = spoken([9.0] * 9 + [2.0] + [9.0] * 9, loss_watchdog_threshold=5.0, loss_watchdog_patience=3)
    assert [(verdict.onset_step, verdict.step) for verdict in verdicts] == [(1, 3), (11, 13)]
    assert verdicts[1].onset_position == 80


def test_each_optimizer_step_counts_once_however_many_lie_between_two_values():
    detector = ThresholdDetector(MonitorSettings(loss_watchdog_threshold=5.0, loss_watchdog_patience=3))
    verdicts = watched([2.0, 9.0, 9.0, 9.0], detector, every=10)
    assert [(verdict.onset_step, verdict.step) for verdict in verdicts] == [(20, 40)]


def test_a_patience_of_one_speaks_at_the_first_step_above():
    [verdict] = spoken([2.0, 5.1], loss_watchdog_threshold=5.0, loss_watchdog_patience=1)
    assert (verdict.onset_step, verdict.step, verdict.severity) == (2, 2, 1.0)


@pytest.mark.parametrize(("last", "may_recover"), [(9.0, True), (math.nan, False)])
def test_the_verdict_has_finite_numbers_and_says_whether_the_loss_may_come_back(last, may_recover):
    [verdict] = spoken([9.0, 9.0, last], loss_watchdog_threshold=5.0)
    assert verdict.may_recover == may_recover
    assert verdict.numbers["loss_watchdog_threshold"] == 5.0
    assert verdict.numbers["streak_steps"] == 3
    assert "above the limit of 5" in verdict.message
    json.dumps(verdict.numbers, allow_nan=False)


def test_training_that_ends_above_the_limit_ends_with_an_incident():
    detector = ThresholdDetector(MonitorSettings(loss_watchdog_threshold=5.0))
    watched([2.0, 9.0], detector)
    assert detector.pending
    verdict = detector.close(observed(1, 9.0))
    assert (verdict.kind, verdict.onset_step, verdict.step) == ("incident", 2, 2)
    watched([2.0], detector, first=2)
    assert detector.close(observed(2, 2.0)) is None


def test_a_rollback_ends_the_streak():
    detector = ThresholdDetector(MonitorSettings(loss_watchdog_threshold=5.0))
    watched([9.0, 9.0], detector)
    detector.rewound()
    assert not detector.pending
    assert watched([9.0, 9.0], detector, first=2) == []
    assert [verdict.onset_step for verdict in watched([9.0], detector, first=4)] == [3]
