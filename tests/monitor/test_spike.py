from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_resume.monitor import Monitor, MonitorSettings

NAN = math.nan


def outline(verdicts):
    """Kind, onset and step of each verdict."""
    return [(verdict.kind, verdict.onset_step, verdict.step) for verdict in verdicts]


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        pytest.param([6.0] * 8, [("incident", 201, 205)], id="stays up"),
        pytest.param([6, 6, 6, 6, 2.5, 6, 6, 2.5], [("incident", 201, 207)], id="dips back in once"),
        pytest.param([6, 6, NAN, NAN, 6, 6, 6], [("incident", 201, 207)], id="goes through skipped NaN"),
        pytest.param([6, 6, 6, 2.5, 2.5, 2.5], [("near_miss", 201, 206)], id="comes back within the patience"),
        pytest.param([9.0, 2.5, 2.5], [("near_miss", 201, 202)], id="lone hard batch"),
        pytest.param([9.0, 2.5] * 20, [("near_miss", n, n + 1) for n in range(201, 241, 2)], id="hard batches"),
        pytest.param([2.58] * 30, [], id="within the noise"),
        pytest.param([1.0] * 30, [], id="falls suddenly"),
    ],
)
def test_a_spike_that_stays_is_an_incident_and_one_that_passes_a_near_miss(observed, healthy, after, expected):
    monitor = Monitor(MonitorSettings())
    verdicts = [
        monitor.observe(observed(index, loss, skipped=math.isnan(loss)))
        for index, loss in enumerate(healthy(200) + after)
    ]
    found = [verdict for verdict in verdicts if verdict is not None]
    assert {verdict.detector for verdict in found} <= {"spike"}
    assert outline(found)[: len(expected)] == expected
    if expected == []:
        assert found == []


def test_the_verdict_names_data_window_and_numbers(watched, healthy):
    [verdict] = watched([*healthy(200), 6.0, 7.0, 6.5, 6.0, 6.0])
    assert (verdict.onset_position, verdict.position) == (1600, 1640)
    assert verdict.numbers["peak"] == 7.0
    assert verdict.numbers["steps_out"] == 5
    assert verdict.numbers["median"] == pytest.approx(2.5, abs=0.02)
    assert verdict.numbers["deviation"] == pytest.approx(0.02, rel=0.3)
    for shown in ("7", "5 of 5 steps", f"{verdict.numbers['limit']:.6g}"):
        assert shown in verdict.message


def test_the_onset_is_the_first_elevated_step_and_earlier_than_the_first_out_of_bounds(watched, healthy):
    calm = healthy(200)
    limit = watched([*calm, 9.0, 2.5])[0].numbers["limit"]
    rising = [2.5 + share * (limit - 2.5) for share in (0.6, 0.8, 0.95)]
    [verdict] = watched(calm + rising + [6.0] * 5)
    assert (verdict.onset_step, verdict.onset_position, verdict.step) == (201, 1600, 208)


def test_elevated_steps_leave_the_baseline_when_a_spike_follows_them(healthy, watched):
    monitor = Monitor(MonitorSettings())
    watched([*healthy(200), 2.6, 2.61, 6.0], monitor)
    assert [step for step, _, _ in monitor.state_dict()["spike"]["baseline"]][-1] == 200


def test_nan_steps_do_not_blind_the_window(watched, healthy):
    with_nan = healthy(200)
    with_nan[60:190] = [NAN] * 130
    monitor = Monitor(MonitorSettings())
    watched(with_nan, monitor)
    found = [verdict for verdict in watched([6.0] * 5, monitor, first=200) if verdict.detector == "spike"]
    assert outline(found) == [("incident", 201, 205)]


def test_no_spike_is_called_before_the_warm_up_is_over(watched, healthy):
    settings = MonitorSettings(spike_warmup_steps=20)
    assert watched(healthy(19) + [6.0] * 5, Monitor(settings)) == []
    assert outline(watched(healthy(20) + [6.0] * 5, Monitor(settings))) == [("incident", 21, 25)]


def test_a_spike_right_after_a_resume_is_seen(watched, healthy):
    before = Monitor(MonitorSettings())
    watched(healthy(200), before)
    resumed = Monitor(MonitorSettings())
    resumed.load_state_dict(before.state_dict())
    assert outline(watched([6.0] * 5, resumed, first=200)) == [("incident", 201, 205)]


def test_after_a_rollback_the_monitor_does_not_remember_the_spike(watched, healthy):
    monitor = Monitor(MonitorSettings())
    watched(healthy(200), monitor)
    saved = monitor.state_dict()
    assert len(watched([6.0] * 5, monitor, first=200)) == 1
    monitor.load_state_dict(saved)
    assert monitor.state_dict() == saved
    assert watched(healthy(100, seed=1), monitor, first=200) == []


def test_pending_lasts_from_the_first_step_out_of_bounds_to_the_verdict(observed, healthy):
    monitor = Monitor(MonitorSettings())
    seen = []
    for index, loss in enumerate([*healthy(100), 6.0, 6.0, 2.5, 2.5, 2.5]):
        monitor.observe(observed(index, loss))
        seen.append(monitor.pending)
    assert seen == [False] * 100 + [True, True, True, False, False]


@pytest.mark.parametrize(
    "losses",
    [
        pytest.param([0.0] * 300, id="all zero"),
        pytest.param([0.0] * 100 + [1e-3 * n / 200 for n in range(200)], id="grows from zero by a thousandth"),
        pytest.param([-1.0 + 0.001 * (-1) ** n for n in range(300)], id="negative"),
        pytest.param([-1.0] * 150 + [-0.97] * 150, id="negative with a rise of three per cent"),
        pytest.param([0.001 * (-1) ** n for n in range(300)], id="around zero"),
        pytest.param([2.5] * 150 + [2.55] * 150, id="perfectly calm with a rise of two per cent"),
    ],
)
def test_losses_of_any_sign_and_calm_losses_do_not_alarm_at_nothing(watched, losses):
    assert watched(losses) == []


def test_a_spike_out_of_negative_losses_is_seen(watched):
    losses = [-1.0 + 0.01 * (-1) ** n for n in range(100)] + [0.5] * 5
    assert outline(watched(losses)) == [("incident", 101, 105)]


@pytest.mark.parametrize("seed", range(20))
def test_healthy_noise_around_a_falling_loss_makes_no_verdict(watched, healthy, seed):
    assert watched(healthy(2000, level=4.0, drop=2.0, noise=0.05, seed=seed)) == []


@given(seed=st.integers(0, 10_000), height=st.floats(0.0, 3.0), length=st.integers(0, 12))
def test_scaling_all_losses_changes_no_spike_verdict(watched, healthy, seed, height, length):
    losses = healthy(150, seed=seed, noise=0.05) + [2.5 + height] * length + healthy(20, seed=seed + 1)
    plain = outline(watched(losses))
    assert outline(watched([10 * loss for loss in losses])) == plain
    assert outline(watched([0.1 * loss for loss in losses])) == plain


@given(seed=st.integers(0, 10_000), height=st.floats(0.0, 1e6), at=st.integers(0, 250))
def test_a_lone_hard_batch_is_a_near_miss_at_most(watched, healthy, seed, height, at):
    losses = healthy(300, seed=seed)
    losses[at] += height
    assert not any(verdict.is_incident for verdict in watched(losses))
