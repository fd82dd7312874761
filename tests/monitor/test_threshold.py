from __future__ import annotations

import math

import pytest

from hpc_resume.monitor import MonitorSettings
from hpc_resume.monitor.threshold import ThresholdDetector


def spoken(observed, losses, **settings):
    detector = ThresholdDetector(MonitorSettings(**settings))
    verdicts = [detector.observe(observed(index, loss)) for index, loss in enumerate(losses)]
    return [verdict for verdict in verdicts if verdict is not None]


def test_it_is_off_without_a_threshold(observed):
    assert spoken(observed, [1e9, math.nan] * 10) == []


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
def test_the_loss_must_stay_above_the_threshold_for_the_patience(observed, losses, onset_and_step):
    verdicts = spoken(observed, losses, loss_threshold=5.0, loss_patience_steps=3)
    assert [(verdict.onset_step, verdict.step) for verdict in verdicts] == (
        [] if onset_and_step is None else [onset_and_step]
    )
    assert all(verdict.is_incident and verdict.detector == "threshold" for verdict in verdicts)


def test_a_run_that_stays_above_is_named_again_after_each_patience(observed):
    verdicts = spoken(observed, [9.0] * 9, loss_threshold=5.0, loss_patience_steps=3)
    assert [verdict.onset_step for verdict in verdicts] == [1, 4, 7]
    assert verdicts[1].onset_position == 24
