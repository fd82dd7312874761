from __future__ import annotations

import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_resume.errors import CheckpointError
from hpc_resume.monitor import Monitor, MonitorSettings

SETTINGS = MonitorSettings(
    spike_window_steps=16,
    spike_warmup_steps=4,
    spike_patience_steps=3,
    loss_threshold=50.0,
    loss_patience_steps=3,
    skipped_patience_steps=3,
)
"""Short enough that everything happens within the curves that hypothesis makes up."""

STEPS = st.lists(
    st.fixed_dictionaries(
        {
            "loss": st.one_of(
                st.floats(2.0, 2.1),
                st.floats(2.0, 2.1),
                st.floats(2.0, 100.0),
                st.floats(allow_nan=True, allow_infinity=True),
            ),
            "grad_norm": st.one_of(st.none(), st.just(1.0), st.floats(allow_nan=True, allow_infinity=True)),
            "skipped": st.sampled_from([False, False, False, True]),
            "weights_at_risk": st.sampled_from([False, False, False, True]),
        }
    ),
    max_size=100,
)


def told(monitor, observed, steps, first=0):
    """The monitor's answer to each step."""
    return [monitor.observe(observed(first + index, **fields)) for index, fields in enumerate(steps)]


def through_json(state):
    return json.loads(json.dumps(state, allow_nan=False))


def eventful_curve(steps: int, seed: int):
    """Noise with spikes, divergences, skips and NaN in it, so that a split may fall into any of them."""
    rng = random.Random(seed)
    losses = [2.0 + rng.gauss(0.0, 0.02) for _ in range(steps)]
    fields = [{"loss": loss, "skipped": False} for loss in losses]
    for _ in range(steps // 15):
        at, length = rng.randrange(steps), rng.randrange(1, 7)
        kind = rng.choice(["spike", "spike", "ramp", "skip", "nan", "high"])
        for offset, step in enumerate(fields[at : at + length]):
            if kind == "skip":
                step["skipped"] = True
            else:
                step["loss"] = {"spike": 4.0, "ramp": 2.06 + 0.2 * offset, "nan": math.nan, "high": 60.0}[kind]
    return fields


@given(steps=STEPS)
def test_any_floats_are_taken_without_an_error_and_leave_strict_json(observed, steps):
    monitor = Monitor(SETTINGS)
    for index, fields in enumerate(steps):
        verdict = monitor.observe(observed(index, **fields))
        if verdict is not None:
            json.dumps(verdict.numbers, allow_nan=False)
            assert verdict.onset_step <= verdict.step
            assert verdict.onset_position < verdict.position
            assert verdict.message
    json.dumps(monitor.state_dict(), allow_nan=False)


@given(steps=STEPS, cut=st.integers(0, 100))
def test_a_state_saved_anywhere_and_loaded_gives_the_same_verdicts(observed, steps, cut):
    unbroken = told(Monitor(SETTINGS), observed, steps)
    first, resumed = Monitor(SETTINGS), Monitor(SETTINGS)
    told(first, observed, steps[:cut])
    resumed.load_state_dict(through_json(first.state_dict()))
    assert resumed.pending == first.pending
    assert told(resumed, observed, steps[cut:], first=cut) == unbroken[cut:]


@pytest.mark.parametrize("seed", range(5))
def test_a_state_saved_at_each_step_of_an_eventful_curve_gives_the_same_verdicts(observed, seed):
    steps = eventful_curve(300, seed)
    unbroken, broken = Monitor(SETTINGS), Monitor(SETTINGS)
    spoken = set()
    for index, fields in enumerate(steps):
        fresh = Monitor(SETTINGS)
        fresh.load_state_dict(through_json(broken.state_dict()))
        broken = fresh
        verdict = unbroken.observe(observed(index, **fields))
        assert broken.observe(observed(index, **fields)) == verdict
        assert broken.state_dict() == unbroken.state_dict()
        if verdict is not None:
            spoken.add((verdict.detector, verdict.kind))
    # Without these the test would prove little.
    assert {("spike", "near_miss"), ("spike", "incident"), ("non_finite", "incident")} <= spoken


@given(steps=STEPS, later=STEPS, cut=st.integers(0, 100))
def test_a_verdict_never_depends_on_later_points(observed, steps, later, cut):
    whole = told(Monitor(SETTINGS), observed, steps)
    other = told(Monitor(SETTINGS), observed, steps[:cut] + later)
    assert other[: len(steps[:cut])] == whole[:cut]


def test_the_state_stays_bounded_over_five_thousand_eventful_steps(observed):
    monitor = Monitor(MonitorSettings(loss_threshold=50.0))
    sizes = []
    for index, fields in enumerate(eventful_curve(5000, seed=7)):
        monitor.observe(observed(index, **fields))
        sizes.append(len(json.dumps(monitor.state_dict())) if index % 50 == 0 else 0)
    assert max(sizes) < 8_000


def test_saved_state_does_not_change_when_the_monitor_goes_on(observed, watched, healthy):
    monitor = Monitor(MonitorSettings())
    watched(healthy(50), monitor)
    saved = monitor.state_dict()
    copy = through_json(saved)
    told(monitor, observed, [{"loss": 9.0}, {"loss": math.nan, "skipped": True}], first=50)
    assert saved == copy


def test_an_incident_goes_before_a_near_miss_with_an_earlier_onset(observed, watched, healthy):
    monitor = Monitor(MonitorSettings(skipped_patience_steps=1))
    watched([*healthy(100), 6.0], monitor)
    verdict = monitor.observe(observed(101, 2.5, skipped=True))
    assert (verdict.kind, verdict.detector, verdict.onset_step) == ("incident", "non_finite", 102)
    assert not monitor.pending


def test_of_two_incidents_the_earlier_onset_is_named(watched, healthy):
    monitor = Monitor(MonitorSettings(loss_threshold=5.0, loss_patience_steps=3, spike_patience_steps=5))
    verdicts = watched([*healthy(100), 4.0, 4.0, 6.0, 6.0, 6.0], monitor)
    assert [(verdict.detector, verdict.onset_step) for verdict in verdicts] == [("spike", 101)]


def test_every_detector_makes_the_monitor_pending(observed):
    for fields in ({"loss": 2.0, "skipped": True}, {"loss": 9.0}):
        monitor = Monitor(MonitorSettings(loss_threshold=5.0))
        assert not monitor.pending
        told(monitor, observed, [fields])
        assert monitor.pending


def test_skipped_steps_are_counted_over_a_resume(observed):
    first, resumed = Monitor(SETTINGS), Monitor(SETTINGS)
    told(first, observed, [{"loss": 2.0, "skipped": True}])
    resumed.load_state_dict(first.state_dict())
    told(resumed, observed, [{"loss": 2.0}, {"loss": 2.0, "skipped": True}], first=1)
    assert resumed.bad_steps == 2


def test_unknown_state_is_ignored_and_missing_state_means_a_fresh_detector(watched, healthy):
    monitor = Monitor(MonitorSettings())
    watched([*healthy(100), 6.0], monitor)
    state = monitor.state_dict()
    del state["spike"]
    monitor.load_state_dict(state | {"tea_leaves": {"cups": 3}})
    assert not monitor.pending
    fresh = Monitor(MonitorSettings()).state_dict()
    assert monitor.state_dict() == state | {"spike": fresh["spike"]}


def test_state_loads_into_a_shorter_window(watched, healthy):
    long, short = Monitor(MonitorSettings()), Monitor(MonitorSettings(spike_window_steps=30))
    watched(healthy(200), long)
    short.load_state_dict(long.state_dict())
    assert [step for step, _, _ in short.state_dict()["spike"]["baseline"]] == list(range(171, 201))


def test_damaged_state_is_an_error_of_one_line_and_changes_nothing(watched, healthy):
    monitor = Monitor(MonitorSettings())
    watched(healthy(50), monitor)
    before = monitor.state_dict()
    with pytest.raises(CheckpointError, match="detector spike") as caught:
        monitor.load_state_dict({"spike": {"baseline": [[1, 2]], "excursion": None}})
    assert "\n" not in str(caught.value)
    assert monitor.state_dict() == before
