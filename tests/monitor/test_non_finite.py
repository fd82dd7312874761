from __future__ import annotations

import json
import math

import pytest
from monitor.curves import observed

from hpc_resume.monitor import MonitorSettings
from hpc_resume.monitor.non_finite import RATE_LEAST_STEPS, SEARCH_STEPS, NonFiniteDetector
from hpc_resume.monitor.settings import RATE_WINDOW_STEPS

NAN, INF = math.nan, math.inf

GOOD = {"loss": 2.0, "grad_norm": 1.0}
SKIP = {"loss": 2.0, "grad_norm": INF, "skipped": True}


@pytest.fixture
def detector() -> NonFiniteDetector:
    return NonFiniteDetector(MonitorSettings())


def spoken(detector, steps):
    verdicts = [detector.observe(observed(index, **fields)) for index, fields in enumerate(steps)]
    return [verdict for verdict in verdicts if verdict is not None]


def test_a_single_skipped_step_is_counted_and_not_acted_on(detector):
    assert spoken(detector, [GOOD] * 20 + [SKIP] + [GOOD] * 20) == []
    assert detector.state_dict()["bad_steps"] == 1


def test_it_is_pending_after_a_bad_step_and_no_more_after_a_good_one(detector):
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
def test_a_streak_is_an_incident_since_its_first_step(detector, fields):
    [verdict] = spoken(detector, [GOOD] * 30 + [fields] * 5)
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
def test_weights_that_may_be_gone_are_an_incident_at_once(detector, fields):
    [verdict] = spoken(detector, [GOOD] * 3 + [fields])
    assert verdict.is_incident
    assert verdict.onset_step == verdict.step == 4


def test_lost_weights_after_skipped_steps_go_back_to_before_the_skipped_ones(detector):
    [verdict] = spoken(detector, [GOOD] * 3 + [SKIP, SKIP, {"loss": NAN}])
    assert (verdict.onset_step, verdict.step) == (4, 6)


def test_too_large_a_share_of_skipped_steps_is_an_incident_since_the_first_of_them(detector):
    [verdict] = spoken(detector, [GOOD] * 100 + [SKIP, GOOD, GOOD] * 17)
    assert verdict.is_incident
    assert verdict.onset_step == 101
    # The 17th of 64 steps is the first to be more than a quarter.
    assert verdict.step == 101 + 16 * 3
    assert "17 of the last 64 steps" in verdict.message


def test_a_share_at_the_limit_is_no_incident(detector):
    assert spoken(detector, [GOOD] * 64 + [SKIP, GOOD, GOOD, GOOD] * 60) == []
    assert detector.state_dict()["bad_steps"] == 60


def test_a_share_of_only_a_few_steps_says_nothing(detector):
    steps = [SKIP, SKIP, GOOD] * (RATE_LEAST_STEPS // 3)
    assert spoken(detector, steps) == []


def test_the_steps_of_one_incident_do_not_make_the_next(detector):
    assert len(spoken(detector, [GOOD] * 64 + [SKIP] * 5 + [GOOD, SKIP] * 5)) == 1


def test_after_an_incident_the_share_is_taken_of_the_steps_since_then(detector):
    verdicts = spoken(detector, [GOOD] * 64 + [SKIP] * 5 + [GOOD, GOOD, SKIP] * 6)
    assert [(verdict.onset_step, verdict.step) for verdict in verdicts] == [(65, 69), (72, 87)]


@pytest.mark.parametrize("bad", [SKIP, {"loss": NAN}, {"loss": NAN, "weights_at_risk": True}], ids=str)
@pytest.mark.parametrize("count", [5, 40, 200])
def test_an_uninterrupted_streak_is_called_once_however_long(detector, bad, count):
    assert len(spoken(detector, [GOOD] * 20 + [bad] * count)) == 1


def test_the_next_streak_is_called_again(detector):
    verdicts = spoken(
        detector, [GOOD] * 20 + [SKIP] * 9 + [GOOD] * 70 + [SKIP] * 9 + [{"loss": NAN}, GOOD, {"loss": NAN}]
    )
    assert [(verdict.onset_step, verdict.step) for verdict in verdicts] == [(21, 25), (100, 104), (111, 111)]


@pytest.mark.parametrize(
    ("steps", "severity", "may_recover"),
    [
        pytest.param([SKIP] * 5, 1.0, True, id="a streak"),
        pytest.param([{"loss": NAN}], 1.0, False, id="NaN that was applied"),
        pytest.param([SKIP, {"loss": INF, "weights_at_risk": True}], 1.0, False, id="unprotected"),
        pytest.param([SKIP, GOOD, GOOD] * 17, 17 / 16, True, id="a share"),
    ],
)
def test_only_skipped_steps_may_be_recovered_from(detector, steps, severity, may_recover):
    [verdict] = spoken(detector, [GOOD] * 80 + steps)
    assert (verdict.severity, verdict.may_recover) == (severity, may_recover)
    json.dumps(verdict.numbers, allow_nan=False)


def test_the_end_of_training_makes_no_incident_of_skipped_steps(detector):
    spoken(detector, [GOOD] * 20 + [SKIP] * 4)
    assert detector.close(observed(23, 2.0, skipped=True)) is None


def test_its_memory_of_bad_steps_is_bounded(detector):
    spoken(detector, [SKIP, GOOD, GOOD, GOOD] * 500)
    assert len(detector.state_dict()["recent"]) <= RATE_WINDOW_STEPS
    assert detector.state_dict()["bad_steps"] == 500


SEARCH = SKIP | {"loss_scale": 2.0**16}


def test_the_search_for_the_first_loss_scale_is_no_incident(detector):
    assert spoken(detector, [SEARCH] * SEARCH_STEPS + [GOOD] * 20) == []
    assert detector.state_dict()["bad_steps"] == SEARCH_STEPS
    assert not detector.pending


@pytest.mark.parametrize(
    ("steps", "onset_and_step"),
    [
        pytest.param([SEARCH] * (SEARCH_STEPS + 5), (SEARCH_STEPS + 1, SEARCH_STEPS + 5), id="that never ends"),
        pytest.param([SEARCH] * 9 + [GOOD] + [SEARCH] * 5, (11, 15), id="after the first update"),
        pytest.param([SKIP] * 5, (1, 5), id="without a loss scale"),
        pytest.param([SEARCH, {"loss": NAN, "loss_scale": 1.0}], (2, 2), id="with a NaN that was applied"),
    ],
)
def test_what_is_no_such_search_is_judged_as_ever(detector, steps, onset_and_step):
    [verdict] = spoken(detector, steps)
    assert (verdict.onset_step, verdict.step) == onset_and_step


def test_a_search_goes_on_after_a_resume(detector):
    resumed = NonFiniteDetector(MonitorSettings())
    spoken(detector, [SEARCH] * 40)
    resumed.load_state_dict(json.loads(json.dumps(detector.state_dict(), allow_nan=False)))
    steps = [SEARCH] * (SEARCH_STEPS - 40 + 5)
    verdicts = [resumed.observe(observed(40 + index, **fields)) for index, fields in enumerate(steps)]
    assert [verdict.step for verdict in verdicts if verdict] == [SEARCH_STEPS + 5]


def test_a_rollback_ends_the_streak_but_not_the_share(detector):
    spoken(detector, [GOOD] * 20 + [SKIP] * 4)
    detector.rewound()
    assert not detector.pending
    assert detector.observe(observed(24, 2.0, skipped=True)) is None
    assert len(detector.state_dict()["recent"]) == 5
