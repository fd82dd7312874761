from __future__ import annotations

import math

import pytest

from hpc_resume.monitor import MonitorSettings
from hpc_resume.monitor.non_finite import RATE_LEAST_STEPS, NonFiniteDetector

NAN, INF = math.nan, math.inf

GOOD = {"loss": 2.0, "grad_norm": 1.0}
SKIP = {"loss": 2.0, "grad_norm": INF, "skipped": True}


@pytest.fixture
def detector() -> NonFiniteDetector:
    return NonFiniteDetector(MonitorSettings())


def spoken(detector, observed, steps):
    verdicts = [detector.observe(observed(index, **fields)) for index, fields in enumerate(steps)]
    return [verdict for verdict in verdicts if verdict is not None]


def test_a_single_skipped_step_is_counted_and_not_acted_on(detector, observed):
    assert spoken(detector, observed, [GOOD] * 20 + [SKIP] + [GOOD] * 20) == []
    assert detector.bad_steps == 1


def test_it_is_pending_after_a_bad_step_and_no_more_after_a_good_one(detector, observed):
    seen = []
    for index, fields in enumerate([GOOD, SKIP, SKIP, GOOD]):
        detector.observe(observed(index, **fields))
        seen.append(detector.pending)
    assert seen == [False, True, True, False]


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param(SKIP, id="skipped with an infinite norm"),
        pytest.param({"loss": NAN, "grad_norm": NAN, "skipped": True}, id="skipped with a NaN loss"),
        pytest.param({"loss": 2.0, "skipped": True}, id="skipped for a reason we don't see"),
        pytest.param({"loss": 2.0, "grad_norm": NAN}, id="NaN norm and nothing said about a skip"),
    ],
)
def test_a_streak_is_an_incident_since_its_first_step(detector, observed, fields):
    [verdict] = spoken(detector, observed, [GOOD] * 30 + [fields] * 5)
    assert verdict.is_incident
    assert verdict.detector == "non_finite"
    assert (verdict.onset_step, verdict.onset_position) == (31, 240)
    assert (verdict.step, verdict.position) == (35, 280)
    assert "5 steps in a row since step 31" in verdict.message


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"loss": NAN, "weights_at_risk": True}, id="NaN loss, unprotected"),
        pytest.param({"loss": 2.0, "grad_norm": INF, "weights_at_risk": True}, id="infinite norm, unprotected"),
        pytest.param({"loss": NAN, "grad_norm": 1.0}, id="NaN loss, protected, but not skipped"),
        pytest.param({"loss": -INF}, id="infinite loss, not skipped"),
    ],
)
def test_weights_that_may_be_gone_are_an_incident_at_once(detector, observed, fields):
    [verdict] = spoken(detector, observed, [GOOD] * 3 + [fields])
    assert verdict.is_incident
    assert verdict.onset_step == verdict.step == 4


def test_lost_weights_after_skipped_steps_go_back_to_before_the_skipped_ones(detector, observed):
    [verdict] = spoken(detector, observed, [GOOD] * 3 + [SKIP, SKIP, {"loss": NAN}])
    assert (verdict.onset_step, verdict.step) == (4, 6)


def test_too_large_a_share_of_skipped_steps_is_an_incident_since_the_first_of_them(detector, observed):
    [verdict] = spoken(detector, observed, [GOOD] * 100 + [SKIP, GOOD, GOOD] * 17)
    assert verdict.is_incident
    assert verdict.onset_step == 101
    # The 17th of 64 steps is the first to be more than a quarter.
    assert verdict.step == 101 + 16 * 3
    assert "17 of the last 64 steps" in verdict.message


def test_a_share_at_the_limit_is_no_incident(detector, observed):
    assert spoken(detector, observed, [GOOD] * 64 + [SKIP, GOOD, GOOD, GOOD] * 60) == []
    assert detector.bad_steps == 60


def test_a_share_of_only_a_few_steps_says_nothing(detector, observed):
    steps = [SKIP, SKIP, GOOD] * (RATE_LEAST_STEPS // 3)
    assert spoken(detector, observed, steps) == []


def test_the_steps_of_one_incident_do_not_make_the_next(detector, observed):
    assert len(spoken(detector, observed, [GOOD] * 64 + [SKIP] * 5 + [GOOD, SKIP] * 5)) == 1


def test_after_an_incident_the_share_is_taken_of_the_steps_since_then(detector, observed):
    verdicts = spoken(detector, observed, [GOOD] * 64 + [SKIP] * 5 + [GOOD, GOOD, SKIP] * 6)
    assert [(verdict.onset_step, verdict.step) for verdict in verdicts] == [(65, 69), (72, 87)]
