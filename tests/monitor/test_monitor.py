from __future__ import annotations

import functools
import json
import math
import pickle
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from monitor.curves import fallen, level, observed, outline, raised, watched

from hpc_resume.errors import CheckpointError
from hpc_resume.monitor import Monitor, MonitorSettings

SHORT = MonitorSettings(
    spike_window_steps=16,
    spike_warmup_steps=4,
    spike_patience_steps=3,
    loss_watchdog_threshold=50.0,
    skipped_patience_steps=3,
    zero_patience_steps=4,
)
"""Short enough that much happens within the curves that hypothesis makes up."""

ANY = st.one_of(
    st.floats(),
    st.sampled_from([0.0, -0.0, 5e-324, -5e-324, 2.2e-308, 1e308, -1e308, 1.7e308, math.nan, math.inf, -math.inf]),
)
LOSS = st.one_of(st.floats(2.0, 2.1), st.floats(2.0, 2.1), st.floats(2.0, 100.0), ANY)
STEPS = st.lists(
    st.fixed_dictionaries(
        {
            "loss": LOSS,
            "grad_norm": st.one_of(st.none(), st.just(1.0), ANY),
            "loss_scale": st.one_of(st.none(), st.just(65536.0), ANY),
            "skipped": st.sampled_from([False, False, False, True]),
            "weights_at_risk": st.sampled_from([False, False, False, True]),
        }
    ),
    max_size=80,
)


def told(monitor, steps, first=0):
    """The monitor's answer to each step."""
    return [monitor.observe(observed(first + index, **fields)) for index, fields in enumerate(steps)]


def through_json(state):
    return json.loads(json.dumps(state, allow_nan=False))


def resumed_from(monitor, chosen):
    fresh = Monitor(chosen)
    fresh.load_state_dict(through_json(monitor.state_dict()))
    return fresh


def assert_sound(verdict):
    json.dumps([verdict.numbers, verdict.severity], allow_nan=False)
    assert verdict.kind in ("incident", "near_miss")
    assert verdict.severity >= 0
    assert verdict.onset_step <= verdict.step
    assert verdict.onset_position < verdict.position
    assert verdict.message
    assert "\n" not in verdict.message


EVENTFUL = MonitorSettings(loss_watchdog_threshold=30.0)


@functools.cache
def eventful(seed: int, steps: int = 3000):
    """A loss that falls, steps up, climbs slowly, spikes, is stuck at zero, and is NaN or skipped now and then."""
    rng = Random(seed)
    losses = fallen(steps, seed=seed)
    for at in range(1200, steps, 1500):
        losses = raised(losses, at + rng.randrange(50), 0.032, until=at + 500)
        losses = raised(losses, at + 700 + rng.randrange(50), rng.choice([0.1, 0.2]), over=500, until=at + 1400)
    fields = [
        {"loss": loss, "grad_norm": rng.gauss(1.0, 0.05), "skipped": False, "loss_scale": 1024.0} for loss in losses
    ]
    for step in fields[900:905]:
        step.update(loss=4.0)
    for step in fields[2950:2965]:
        step.update(loss=4.0)
    for _ in range(steps // 150):
        at, kind = rng.randrange(steps), rng.choice(["spike", "spike", "pair", "skip", "nan", "high", "zero"])
        for step in fields[at : at + rng.randrange(1, 20)][: 2 if kind == "pair" else None]:
            if kind == "skip":
                step.update(skipped=True, grad_norm=math.inf)
            else:
                high = {"spike": 4.0, "pair": 4.0, "nan": math.nan, "high": 60.0, "zero": 0.0}[kind]
                step.update(loss=high * rng.uniform(0.9, 1.1), grad_norm=9.0, loss_scale=rng.choice([1024.0, 0.5]))
    return fields


@functools.cache
def watched_whole(seed: int):
    """The verdicts of an unbroken run over that curve, and the steps before which something was being watched."""
    monitor, answers, busy = Monitor(EVENTFUL), [], []
    for index, fields in enumerate(eventful(seed)):
        if monitor.pending:
            busy.append(index)
        answers.append(monitor.observe(observed(index, **fields)))
    return answers, busy


def being_watched(state):
    """What the state of a monitor says that is going on."""
    found = {
        "spike": state["spike"]["test"]["excursion"],
        "plateau": state["plateau"]["test"]["excursion"],
        "divergence": state["divergence"]["climb"],
        "non_finite": state["non_finite"]["streak"],
        "overflow": state["overflow"]["zeros"],
        "threshold": state["threshold"]["streak"],
    }
    return {name for name, what in found.items() if what is not None}


@given(steps=STEPS)
def test_any_floats_are_taken_without_an_error_and_leave_strict_json(steps):
    monitor = Monitor(SHORT)
    for index, fields in enumerate(steps):
        verdict = monitor.observe(observed(index, **fields))
        if verdict is not None:
            assert_sound(verdict)
        through_json(monitor.state_dict())
    verdict = monitor.close()
    if verdict is not None:
        assert_sound(verdict)


@settings(max_examples=30)
@given(steps=STEPS.filter(bool), rise=st.sampled_from([0.0, 0.02]))
def test_any_floats_are_taken_for_so_long_that_every_detector_judges_them(steps, rise):
    chosen = MonitorSettings(spike_min_rise=rise, plateau_min_rise=rise, divergence_min_rise=rise)
    monitor = Monitor(chosen)
    for index in range(900):
        verdict = monitor.observe(observed(index, **steps[index % len(steps)]))
        if verdict is not None:
            assert_sound(verdict)
        if index % 32 == 31:
            through_json(monitor.state_dict())


def test_noise_as_small_as_a_float_can_be_leaves_strict_json():
    monitor = Monitor(MonitorSettings(spike_min_rise=0.0))
    for index, loss in enumerate([0.0, 5e-324] * 20 + [1e300] * 12):
        verdict = monitor.observe(observed(index, loss))
        through_json(monitor.state_dict())
        if verdict is not None:
            assert_sound(verdict)


@given(steps=STEPS, cut=st.integers(0, 80))
def test_a_state_saved_anywhere_and_loaded_gives_the_same_verdicts(steps, cut):
    unbroken, first = Monitor(SHORT), Monitor(SHORT)
    answers = told(unbroken, steps)
    told(first, steps[:cut])
    resumed = resumed_from(first, SHORT)
    assert resumed.pending == first.pending
    assert told(resumed, steps[cut:], first=cut) == answers[cut:]
    if cut < len(steps):
        assert resumed.close() == unbroken.close()


@settings(max_examples=25)
@given(seed=st.integers(0, 3), data=st.data())
def test_killed_and_resumed_at_any_step_gives_the_verdicts_of_an_unbroken_run(seed, data):
    steps, (answers, busy) = eventful(seed), watched_whole(seed)
    # Every other cut falls into something that is going on.
    cut = data.draw(st.one_of(st.sampled_from(busy), st.integers(0, len(steps))))
    again = min(len(steps), cut + data.draw(st.integers(0, 50)))
    first = Monitor(EVENTFUL)
    assert told(first, steps[:cut]) == answers[:cut]
    resumed = resumed_from(first, EVENTFUL)
    assert told(resumed, steps[cut:again], first=cut) == answers[cut:again]
    resumed = resumed_from(resumed, EVENTFUL)
    assert told(resumed, steps[again:], first=again) == answers[again:]


def test_killed_and_resumed_at_each_step_gives_the_verdicts_of_an_unbroken_run():
    answers, _ = watched_whole(0)
    monitor, unbroken, cut_into, spoken = Monitor(EVENTFUL), Monitor(EVENTFUL), set(), set()
    for index, (fields, expected) in enumerate(zip(eventful(0), answers, strict=True)):
        state = through_json(monitor.state_dict())
        assert state == unbroken.state_dict()
        unbroken.observe(observed(index, **fields))
        cut_into |= being_watched(state)
        monitor = Monitor(EVENTFUL)
        monitor.load_state_dict(state)
        assert monitor.observe(observed(index, **fields)) == expected
        if expected is not None:
            spoken.add((expected.detector, expected.kind))
    # Without these it would prove little.
    assert cut_into == {"spike", "plateau", "divergence", "non_finite", "overflow", "threshold"}
    assert {("spike", "near_miss"), ("spike", "incident"), ("plateau", "incident")} <= spoken
    assert {("divergence", "incident"), ("non_finite", "incident"), ("overflow", "incident")} <= spoken


@given(steps=STEPS, later=STEPS, cut=st.integers(0, 80))
def test_a_verdict_never_depends_on_later_points(steps, later, cut):
    whole = told(Monitor(SHORT), steps)
    other = told(Monitor(SHORT), steps[:cut] + later)
    assert other[: len(steps[:cut])] == whole[:cut]


@pytest.mark.parametrize("cut", [900, 1300, 2150])
def test_the_verdicts_of_a_prefix_are_a_prefix_of_the_verdicts(cut):
    answers, _ = watched_whole(1)
    assert told(Monitor(EVENTFUL), eventful(1)[:cut]) == answers[:cut]
    assert told(Monitor(EVENTFUL), eventful(1)[:cut] + eventful(2)[cut : cut + 50])[:cut] == answers[:cut]


def test_a_hundred_thousand_steps_use_bounded_memory_and_a_small_state():
    monitor, steps = Monitor(EVENTFUL), eventful(0)
    states, whole = [], []
    for index in range(100_000):
        monitor.observe(observed(index, **steps[index % len(steps)]))
        if index % 500 == 499:
            states.append(len(json.dumps(monitor.state_dict(), allow_nan=False)))
            whole.append(len(pickle.dumps(monitor)))
    assert max(states) < 64 * 1024
    # Whatever it holds, also what it does not save.
    assert max(whole[len(whole) // 2 :]) <= 1.05 * max(whole[: len(whole) // 2])


def test_saved_state_does_not_change_when_the_monitor_goes_on():
    monitor = Monitor(EVENTFUL)
    told(monitor, eventful(0)[:1500])
    saved = monitor.state_dict()
    copy = through_json(saved)
    told(monitor, eventful(0)[1500:1700], first=1500)
    assert saved == copy


def test_an_incident_goes_before_a_near_miss_with_an_earlier_onset():
    monitor = Monitor(MonitorSettings(skipped_patience_steps=1))
    assert watched([*level(100), 6.0, 6.0, 6.0, 2.4], monitor) == []
    # The spike comes back with this step.
    verdict = monitor.observe(observed(104, 2.4, skipped=True))
    assert (verdict.kind, verdict.detector, verdict.onset_step) == ("incident", "non_finite", 105)
    assert not monitor.state_dict()["spike"]["test"]["excursion"]


def test_of_two_incidents_the_earlier_onset_is_named():
    monitor = Monitor(MonitorSettings(loss_watchdog_threshold=5.0, spike_patience_steps=5))
    verdicts = watched([*level(100), 4.0, 4.0, 6.0, 6.0, 6.0], monitor)
    assert outline(verdicts) == [("incident", "spike", 101, 105)]


@pytest.mark.parametrize(
    ("losses", "last"),
    [
        pytest.param([], {"loss": 2.0, "skipped": True}, id="non_finite"),
        pytest.param([2.5], {"loss": 9.0}, id="threshold"),
        pytest.param(level(50), {"loss": 4.0}, id="spike"),
        pytest.param(level(50), {"loss": 0.0}, id="overflow"),
        pytest.param(raised(fallen(1223), 1200, 0.06), {"loss": 2.65}, id="plateau"),
        pytest.param(raised(fallen(2207), 2000, 0.025), {"loss": 2.56}, id="divergence"),
    ],
)
def test_every_detector_makes_the_monitor_pending(losses, last, request):
    monitor = Monitor(MonitorSettings(loss_watchdog_threshold=8.0))
    watched(losses, monitor)
    monitor.observe(observed(len(losses), **last))
    assert monitor.pending
    assert request.node.callspec.id in being_watched(monitor.state_dict())


def test_nothing_is_pending_on_a_calm_curve_but_for_a_few_steps():
    monitor, pending = Monitor(MonitorSettings()), 0
    for index, loss in enumerate(level(1000)):
        assert monitor.observe(observed(index, loss)) is None
        pending += monitor.pending
    assert pending < 20


def test_the_end_of_training_is_judged_by_every_detector_and_the_gravest_is_named():
    monitor = Monitor(MonitorSettings(loss_watchdog_threshold=5.0))
    assert watched([*level(100), 4.0, 6.0, 6.0], monitor) == []
    verdict = monitor.close()
    assert (verdict.kind, verdict.detector, verdict.onset_step, verdict.step) == ("incident", "spike", 101, 103)
    assert Monitor(MonitorSettings()).close() is None


def test_the_end_of_training_in_a_nan_within_a_spike_has_finite_numbers():
    monitor = Monitor(MonitorSettings())
    watched([*level(100), 6.0, 6.0, 6.0], monitor)
    assert monitor.observe(observed(103, math.nan, skipped=True)) is None
    verdict = monitor.close()
    assert verdict.detector == "spike"
    assert_sound(verdict)


def test_a_rollback_brings_a_grace_that_is_saved_with_the_state():
    monitor = Monitor(MonitorSettings())
    watched(level(200, noise=0.01), monitor)
    monitor.rewound()
    resumed = resumed_from(monitor, MonitorSettings())
    after = [2.5 + 8 * 0.04375] * 3 + [2.4] * 3
    assert watched(after, resumed, first=200) == []
    without = Monitor(MonitorSettings())
    watched(level(200, noise=0.01), without)
    assert [verdict.kind for verdict in watched(after, without, first=200)] == ["near_miss"]


def test_what_was_being_watched_is_dropped_when_training_goes_on_with_other_samples():
    monitor = Monitor(MonitorSettings(loss_watchdog_threshold=5.0))
    losses = raised(fallen(2200), 2000, 0.025)
    watched(losses, monitor)
    told(monitor, [{"loss": loss, "skipped": True} for loss in (4.0, 6.0)], first=2200)
    assert being_watched(monitor.state_dict()) >= {"spike", "plateau", "divergence", "non_finite", "threshold"}
    monitor.rewound()
    assert not monitor.pending
    assert being_watched(monitor.state_dict()) == set()


def test_unknown_state_is_ignored_and_missing_state_means_a_fresh_detector():
    monitor = Monitor(MonitorSettings())
    watched([*level(100), 6.0], monitor)
    state = monitor.state_dict()
    del state["spike"]
    monitor.load_state_dict(state | {"tea_leaves": {"cups": 3}})
    assert not monitor.pending
    fresh = Monitor(MonitorSettings()).state_dict()
    assert monitor.state_dict() == state | {"spike": fresh["spike"]}


def test_state_loads_into_a_shorter_window():
    long, short = Monitor(MonitorSettings()), Monitor(MonitorSettings(spike_window_steps=30))
    watched(level(200), long)
    short.load_state_dict(long.state_dict())
    errors = [monitor.state_dict()["spike"]["test"]["forecast"]["errors"] for monitor in (long, short)]
    assert errors[1] == errors[0][-30:]


@pytest.mark.parametrize("name", ["non_finite", "overflow", "threshold", "spike", "plateau", "divergence"])
@pytest.mark.parametrize("damage", ["the last entry is missing", {}, [], None, 7], ids=str)
def test_damaged_state_is_an_error_of_one_line_and_the_other_detectors_go_on(name, damage):
    before, monitor = Monitor(EVENTFUL), Monitor(EVENTFUL)
    told(before, eventful(0)[:1500])
    saved = before.state_dict()
    if isinstance(damage, str):
        # The others were loaded before that is noticed.
        damage = dict(list(saved[name].items())[:-1])
    with pytest.raises(CheckpointError, match=f"state of {name} ") as caught:
        monitor.load_state_dict(saved | {name: damage})
    assert "\n" not in str(caught.value)
    assert monitor.state_dict() == saved | {name: Monitor(EVENTFUL).state_dict()[name]}
