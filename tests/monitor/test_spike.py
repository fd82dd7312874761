from __future__ import annotations

import json
import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from monitor.curves import (
    Curve,
    divergence_from_reference,
    epochs,
    fallen,
    hard_batches,
    level,
    memorised,
    negative,
    observed,
    outline,
    policy_gradient,
    preference,
    pretraining,
    raised,
    said,
    watched,
)

from hpc_resume.monitor import MonitorSettings
from hpc_resume.monitor.spike import SpikeDetector

NAN = math.nan

DEVIATION = 2.5 * 0.035 / 2
"""What `level(200)` is judged by: its noise is smaller than the least rise that counts."""


def spikes(losses, log=None, **chosen):
    """Kind, onset and step of each verdict of the spike detector alone."""
    verdicts = watched(losses, SpikeDetector(MonitorSettings(**chosen)), **(log or {}))
    assert {verdict.detector for verdict in verdicts} <= {"spike"}
    return [(verdict.kind, verdict.onset_step, verdict.step) for verdict in verdicts]


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        pytest.param([6.0] * 12, [("incident", 201, 210)], id="stays up"),
        pytest.param([6.0] * 10 + [2.5] * 9, [("incident", 201, 210)], id="comes back just after its patience"),
        pytest.param([6.0] * 9 + [2.4] * 9, [("near_miss", 201, 211)], id="comes back just within its patience"),
        pytest.param([6.0] * 9 + [2.5, 6.0], [("incident", 201, 211)], id="dips at the end of its patience"),
        pytest.param([6, 6, 6, 2.5, 6, 6, 6, 6, 6, 6], [("incident", 201, 210)], id="dips back in once"),
        pytest.param([6, 6, NAN, NAN, 6, 6, 6, NAN, 6, 6], [("incident", 201, 210)], id="goes through skipped NaN"),
        pytest.param([6.0] * 3 + [2.4] * 3, [("near_miss", 201, 205)], id="three steps"),
        pytest.param([6.0] * 2 + [2.5] * 9, [], id="two hard batches"),
        pytest.param([9.0, 2.5, 2.5], [], id="a lone hard batch"),
        pytest.param([9.0, 2.5, 2.5, 2.5] * 20, [], id="many lone hard batches"),
        pytest.param([2.58] * 30, [], id="within the least rise"),
        pytest.param([1.0] * 30, [], id="falls suddenly"),
    ],
)
def test_a_spike_that_stays_is_an_incident_and_one_that_passes_a_near_miss(after, expected):
    assert spikes(level(200) + after) == expected


@pytest.mark.parametrize(("patience", "step"), [(1, 203), (3, 203), (5, 205), (30, 230)])
def test_the_patience_is_counted_from_the_onset_once_the_rise_is_confirmed(patience, step):
    assert spikes(level(200) + [6.0] * 40, spike_patience_steps=patience) == [("incident", 201, step)]


def test_a_patience_longer_than_a_rise_needs_to_settle_is_waited_out():
    assert spikes(level(200) + [6.0] * 100, spike_patience_steps=60) == [("incident", 201, 260)]


def test_a_confirmed_rise_that_sinks_to_just_within_its_bounds_and_stays_there_is_a_near_miss():
    assert spikes(level(200, noise=0.001) + [6.0] * 3 + [2.5 + 1.9 * DEVIATION] * 60) == [("near_miss", 201, 248)]


def test_one_spike_is_called_once_and_the_next_one_again():
    losses = level(200) + [6.0] * 30 + level(100, seed=1) + [6.0] * 30 + level(100, seed=2)
    assert spikes(losses) == [("incident", 201, 210), ("incident", 331, 340)]


def test_the_onset_is_the_first_step_of_the_rise_and_not_the_first_out_of_bounds():
    climbing = [2.5 + DEVIATION * deviations for deviations in (2.6, 3.5, 5.0, 9.0)]
    assert spikes(level(200, noise=0.01) + climbing + [6.0] * 8) == [("incident", 201, 210)]


def test_a_rise_of_many_slightly_high_steps_is_confirmed():
    assert spikes(level(200, noise=0.01) + [2.5 + 4 * DEVIATION] * 12) == [("incident", 201, 210)]


def test_the_verdict_names_data_level_and_numbers():
    detector = SpikeDetector(MonitorSettings())
    [verdict] = watched([*level(200), 6.0, 7.0, *[6.5] * 8], detector)
    assert (verdict.onset_position, verdict.position) == (1600, 1680)
    assert verdict.numbers["peak"] == 7.0
    assert verdict.numbers["loss"] == 6.5
    assert verdict.numbers["steps"] == 10
    assert verdict.numbers["level"] == pytest.approx(2.5, abs=0.03)
    assert verdict.numbers["noise"] == pytest.approx(DEVIATION, rel=0.02)
    assert verdict.numbers["limit"] == pytest.approx(2.5 + 6 * DEVIATION, abs=0.05)
    assert verdict.severity == pytest.approx((7.0 - 2.5) / (6 * DEVIATION), rel=0.02)
    assert verdict.may_recover
    assert "to 7 since step 201 and did not come back" in verdict.message
    assert "gradients" not in verdict.message


@pytest.mark.parametrize("every", [5, 9, 10, 100])
def test_in_a_log_of_every_so_many_steps_two_values_are_a_spike_and_one_is_none(every):
    losses, high = level(100), 2.5 + 12 * DEVIATION
    [(kind, onset, step)] = spikes([*losses, high, high, high], {"every": every})
    assert (kind, onset) == ("incident", 101 * every)
    # The patience, too, is over with the second of them, but for every fifth step.
    assert step == (103 if every == 5 else 102) * every
    assert spikes([*losses, high, *losses], {"every": every}) == []


def test_in_a_log_of_every_fourth_step_it_takes_three_values():
    assert spikes([*level(100), 6.0, 6.0, 2.4, 2.4, 2.4, 2.4], {"every": 4}) == []
    assert spikes([*level(100), 6.0, 6.0, 6.0, 2.4, 2.4], {"every": 4}) == [("near_miss", 404, 420)]
    assert spikes([*level(100), 6.0, 6.0, 6.0, 6.0], {"every": 4}) == [("incident", 404, 416)]


@pytest.mark.parametrize(("every", "expected"), [(1, []), (9, []), (10, [("near_miss", 1010, 1030)])])
def test_one_gross_value_is_a_spike_only_in_a_log_of_so_few_that_they_are_means(every, expected):
    assert spikes([*level(100), 6.0, 2.4, 2.4, 2.4, 2.4], {"every": every}) == expected


@pytest.mark.parametrize(
    ("losses", "high"),
    [
        pytest.param(level(200, loss=0.0, noise=0.05, seed=5), 0.5, id="zero mean"),
        pytest.param(level(200, loss=-0.02, noise=0.03), 0.4, id="negative and near zero"),
        pytest.param([0.005 * Random(n).lognormvariate(0.0, 0.5) for n in range(200)], 0.05, id="as of GRPO"),
    ],
)
def test_a_loss_that_hovers_about_zero_raises_nothing_unless_it_is_gross(losses, high):
    assert spikes(losses + [high] * 3 + losses[:20]) == []
    assert spikes(losses + [high * 100] * 10) == [("incident", 201, 210)]


def test_a_loss_that_never_fell_is_judged_by_wider_bounds_than_one_that_did():
    # About 4 deviations above zero: more than of a loss that hovers, less than of one that was never higher.
    noise, after = level(200, loss=0.25, noise=0.05, seed=3), [0.9] * 10
    fell = [2.0 * 0.97**step for step in range(100)]
    assert spikes(noise + after) == []
    assert spikes(fell + noise + after) == [("incident", 301, 310)]
    before, resumed = SpikeDetector(MonitorSettings()), SpikeDetector(MonitorSettings())
    watched(fell + noise, before)
    resumed.load_state_dict(before.state_dict())
    assert outline(watched(after, resumed, first=300)) == [("incident", "spike", 301, 310)]


def test_a_large_loss_that_never_fell_is_judged_like_any_other():
    assert spikes([2.5 + 0.001 * step for step in range(200)] + [6.0] * 10) == [("incident", 201, 210)]


def test_losses_that_never_change_have_no_noise_but_the_least_rise():
    assert spikes([2.5] * 200 + [2.5 + 1.9 * DEVIATION] * 30) == []
    assert spikes([2.5] * 200 + [6.0] * 10) == [("incident", 201, 210)]
    assert spikes([0.0] * 200 + [6.0] * 10) == []


def test_a_spike_out_of_negative_losses_is_seen():
    losses = [-1.0 + 0.01 * (-1) ** step for step in range(100)]
    assert spikes(losses + [0.5] * 10) == [("incident", 101, 110)]
    assert spikes([*losses, *[-0.97] * 100]) == []


def norms(count, high):
    rng = Random(1)
    return [1.0 + rng.gauss(0.0, 0.05) for _ in range(count)] + high + [1.0] * 30


@pytest.mark.parametrize(
    ("high", "expected"),
    [
        pytest.param([9.0, 9.0], [("near_miss", 201, 205)], id="two with large gradients"),
        pytest.param([9.0, 1.0], [], id="the first with large gradients"),
        pytest.param([1.0, 1.0], [], id="with usual gradients"),
    ],
)
def test_two_steps_out_of_bounds_and_a_high_one_are_a_spike_where_gradients_were_far_too_large(high, expected):
    losses = [*level(200), 6.0, 6.0, 2.5 + 3.5 * DEVIATION, *[2.4] * 20]
    assert spikes(losses, {"norms": norms(200, high)}) == expected
    # Two alone may be a hard stretch of data.
    assert spikes([*level(200), 6.0, 6.0, *[2.4] * 20], {"norms": norms(200, high)}) == []


def test_large_gradients_alone_are_no_spike():
    assert spikes(level(230), {"norms": norms(200, [50.0] * 10)}) == []


@pytest.mark.parametrize("count", [4, 12], ids=["near miss", "incident"])
def test_a_verdict_says_how_many_gradients_were_far_too_large(count):
    losses = [*level(200), *[6.0] * count, *level(20, seed=1)]
    [verdict] = watched(losses, SpikeDetector(MonitorSettings()), norms=norms(200, [9.0] * count))
    assert verdict.numbers["anomalous_norms"] == min(count, 10)
    assert "gradients were far too large as well" in verdict.message


def after_rollback(settings, quiet):
    """Spike verdicts about three steps that rise by eight deviations, so many steps after a rollback."""
    detector = SpikeDetector(settings)
    watched(level(200, noise=0.01), detector)
    detector.rewound()
    losses = level(quiet, noise=0.01, seed=4) + [2.5 + 8 * DEVIATION] * 3 + [2.5] * 5
    return [verdict.kind for verdict in watched(losses, detector, first=200)]


def test_bounds_are_wider_for_a_few_steps_after_a_rollback_and_then_as_before():
    assert after_rollback(MonitorSettings(), quiet=0) == []
    assert after_rollback(MonitorSettings(), quiet=9) == []
    assert after_rollback(MonitorSettings(), quiet=10) == ["near_miss"]
    assert after_rollback(MonitorSettings(grace_steps=0), quiet=0) == ["near_miss"]


def test_a_rise_that_was_being_watched_is_dropped_by_a_rollback():
    detector = SpikeDetector(MonitorSettings(grace_steps=0))
    watched([*level(200), 6.0, 6.0], detector)
    detector.rewound()
    assert not detector.pending
    assert watched([6.0, *[2.4] * 5], detector, first=200) == []


def test_a_rise_that_was_called_is_called_again_if_it_comes_again_after_the_rollback():
    detector = SpikeDetector(MonitorSettings())
    assert len(watched(level(200) + [6.0] * 12, detector)) == 1
    detector.rewound()
    assert outline(watched([6.0] * 12, detector, first=212)) == [("incident", "spike", 213, 222)]


def test_a_gross_spike_is_seen_within_the_grace():
    detector = SpikeDetector(MonitorSettings())
    watched(level(200), detector)
    detector.rewound()
    assert [verdict.step for verdict in watched([6.0] * 10, detector, first=200)] == [210]


@pytest.mark.parametrize(
    ("ending", "kind"),
    [
        pytest.param([6.0] * 5, "incident", id="in a confirmed spike"),
        pytest.param([2.5 + 12 * DEVIATION] * 2, "incident", id="with two steps out of bounds"),
        pytest.param([6.0], "incident", id="with a gross step"),
        pytest.param([6.0, 6.0, 6.0, NAN], "incident", id="in a spike, with a NaN"),
        pytest.param([6.0, 6.0, 6.0, 2.4], "near_miss", id="with a spike that was coming back"),
        pytest.param([2.5 + 12 * DEVIATION], None, id="with what one hard batch explains"),
        pytest.param([6.0] * 12, None, id="in a spike that was called"),
        pytest.param([2.5 + 4 * DEVIATION], None, id="a little high"),
        pytest.param([6.0, 2.5], None, id="after a hard batch"),
        pytest.param([2.5], None, id="calm"),
    ],
)
def test_training_that_ends_out_of_bounds_ends_with_an_incident(ending, kind):
    detector = SpikeDetector(MonitorSettings())
    losses = level(200) + ending
    watched(losses, detector)
    verdict = detector.close(observed(len(losses) - 1, losses[-1]))
    assert (verdict and verdict.kind) == kind
    if verdict is not None:
        assert (verdict.onset_step, verdict.step) == (201, len(losses))
        json.dumps(verdict.numbers, allow_nan=False)


def test_nothing_is_called_before_the_warm_up_is_over():
    assert spikes(level(8) + [6.0] * 12) == []
    assert spikes(level(9) + [6.0] * 12) == [("incident", 10, 19)]
    assert spikes(level(20) + [6.0] * 12, spike_warmup_steps=20) == []
    assert spikes(level(24) + [6.0] * 12, spike_warmup_steps=20) == [("incident", 25, 34)]


def test_pending_lasts_from_the_first_high_step_until_it_is_back():
    detector = SpikeDetector(MonitorSettings())
    seen = []
    for index, loss in enumerate([*level(100), 6.0, 6.0, 6.0, 2.4, 2.4, 2.4]):
        detector.observe(observed(index, loss))
        seen.append(detector.pending)
    assert seen == [False] * 100 + [True] * 4 + [False] * 2


def test_a_spike_right_after_a_resume_is_seen():
    before, resumed = SpikeDetector(MonitorSettings()), SpikeDetector(MonitorSettings())
    watched(level(200), before)
    resumed.load_state_dict(before.state_dict())
    assert [verdict.onset_step for verdict in watched([6.0] * 10, resumed, first=200)] == [201]


def test_after_a_rollback_it_does_not_remember_the_spike():
    detector = SpikeDetector(MonitorSettings())
    watched(level(200), detector)
    saved = detector.state_dict()
    assert len(watched([6.0] * 10, detector, first=200)) == 1
    detector.load_state_dict(saved)
    assert detector.state_dict() == saved
    assert watched(level(100, seed=1), detector, first=200) == []


@given(seed=st.integers(0, 1000), height=st.floats(0.0, 1e6), at=st.integers(0, 250))
def test_a_lone_hard_batch_is_nothing(seed, height, at):
    losses = level(300, seed=seed)
    losses[at] += height
    assert spikes(losses) == []


@given(seed=st.integers(0, 1000), height=st.floats(0.0, 3.0), count=st.integers(0, 14), rate=st.floats(0.0, 0.3))
def test_nan_between_changes_nothing(seed, height, count, rate):
    losses = level(100, seed=seed) + [2.5 + height] * count + level(30, seed=seed + 1)
    rng = Random(seed)
    places, step = [], 0
    for _ in losses:
        step += 2 if rng.random() < rate else 1
        places.append(step)
    alone, among = SpikeDetector(MonitorSettings()), SpikeDetector(MonitorSettings())
    without = [alone.observe(observed(place - 1, loss)) for place, loss in zip(places, losses, strict=True)]
    filled = dict(zip(places, losses, strict=True))
    answers = [among.observe(observed(place, filled.get(place + 1, NAN))) for place in range(step)]
    assert [verdict for verdict in answers if verdict] == [verdict for verdict in without if verdict]


def test_a_window_full_of_nan_does_not_blind_it():
    losses = level(200)
    losses[60:190] = [NAN] * 130
    assert spikes(losses + [6.0] * 10) == [("incident", 201, 210)]


SHAPES = (pretraining, hard_batches, epochs, memorised, preference, negative, divergence_from_reference)
SHAPES += (policy_gradient,)


def sickened(losses: Curve, rng: Random) -> Curve:
    """The curve with a spike, a step up or a slow climb, in proportion to what it is."""
    steps = len(losses)
    at, size = rng.randrange(steps // 4, steps), sum(map(abs, losses[-50:])) / 50
    kind, by = rng.choice(["spike", "step", "climb"]), size * rng.choice([0.05, 0.2, 1.0, 30.0])
    length = {"spike": rng.randint(1, 15), "step": steps, "climb": steps}[kind]
    over = 300 if kind == "climb" else 1
    return [
        loss + (by * min(1.0, (index - at + 1) / over) if at <= index < at + length else 0.0)
        for index, loss in enumerate(losses)
    ]


@settings(max_examples=40)
@given(seed=st.integers(0, 10_000), shape=st.sampled_from(SHAPES), steps=st.sampled_from([120, 400, 1500]))
def test_losses_in_another_unit_give_the_same_verdicts(seed, shape, steps):
    losses = sickened(shape(steps, Random(seed)), Random(seed + 1))
    # A loss that is exactly zero is the same in any unit, and what a log's digits round away is not.
    plain = outline(watched([loss or 1e-9 for loss in losses]))
    for unit in (10.0, 0.1):
        assert outline(watched([unit * (loss or 1e-9) for loss in losses])) == plain


def test_spikes_steps_and_climbs_in_another_unit_are_the_same_ones():
    found = set()
    for seed, over in enumerate((1, 600)):
        losses = raised(fallen(2400, seed=seed), 1500, 0.04, over)
        losses[700:704] = [6.0] * 4
        plain = outline(watched(losses))
        found.update(entry[:2] for entry in plain)
        for unit in (10.0, 0.1):
            assert outline(watched([unit * loss for loss in losses])) == plain
    assert {("near_miss", "spike"), ("incident", "plateau"), ("incident", "divergence")} <= found


@pytest.mark.parametrize("seed", range(10))
def test_healthy_noise_about_a_falling_loss_makes_no_verdict(seed):
    assert spikes(pretraining(2000, Random(seed))) == []


def test_the_answer_comes_with_the_step_that_it_is_about():
    answers = said(SpikeDetector(MonitorSettings()), level(200) + [6.0] * 12)
    assert [index for index, verdict in enumerate(answers, start=1) if verdict] == [210]
