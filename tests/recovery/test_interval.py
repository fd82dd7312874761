"""How often to save: the formula against brute force, its bounds, and what is said about it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_resume.recovery import events as ev
from hpc_resume.recovery.interval import (
    Choice,
    Measured,
    choose,
    choose_unmeasured,
    daly_interval,
    failures,
    replaces,
    time_between_failures,
    usual_save,
)

HOUR_S = 3600.0
MEASURED = Measured(step_s=5.0, blocked_s=1.2, save_s=40.0, trained_s=30 * HOUR_S, failures=2)


def in_force(choice: Choice, steps: int | None = None) -> ev.IntervalChosen:
    return ev.IntervalChosen(
        attempt=1, steps=choice.steps if steps is None else steps, message=choice.message, numbers=choice.numbers
    )


def overhead(interval_s: float, cost_s: float, between_s: float) -> float:
    """Wall time per second of progress where failures come at random (Daly 2006, without the constant for restarts)."""
    return between_s * math.expm1((interval_s + cost_s) / between_s) / interval_s


def brute_force(cost_s: float, between_s: float) -> float:
    """Return the best interval to 0.1%, by trying them."""
    candidates = (between_s * 1.001**-power for power in range(-1000, 15_000))
    return min(candidates, key=lambda interval_s: overhead(interval_s, cost_s, between_s))


@pytest.mark.parametrize(
    ("share", "within", "dearer"),
    [
        pytest.param(1e-6, 0.002, 1e-6, id="a save of a millionth"),
        pytest.param(1e-4, 0.002, 1e-6, id="a save of a ten-thousandth"),
        pytest.param(0.01, 0.002, 1e-6, id="a save of a hundredth"),
        pytest.param(0.1, 0.002, 1e-6, id="a save of a tenth"),
        pytest.param(0.5, 0.01, 1e-4, id="a save of a half"),
        pytest.param(1.0, 0.025, 2e-4, id="a save as long as the time between failures"),
        pytest.param(1.99, 0.07, 2e-3, id="a save almost at the end of the expansion"),
        pytest.param(2.01, 0.07, 2e-3, id="a save just behind the end of the expansion"),
        pytest.param(5.0, 0.01, 1e-4, id="a save that hardly ever succeeds"),
    ],
)
def test_the_formula_finds_what_trying_all_intervals_finds(share: float, within: float, dearer: float) -> None:
    between_s = 18 * HOUR_S
    cost_s = share * between_s
    found, best = daly_interval(cost_s, between_s), brute_force(cost_s, between_s)
    assert found == pytest.approx(best, rel=within)
    assert overhead(found, cost_s, between_s) <= overhead(best, cost_s, between_s) * (1 + dearer)


def test_a_cheap_save_gives_youngs_formula() -> None:
    assert daly_interval(1e-3, 1e6) == pytest.approx(math.sqrt(2 * 1e-3 * 1e6), rel=1e-4)


def test_a_save_that_takes_twice_the_time_between_failures_is_made_once_in_that_time() -> None:
    assert daly_interval(20.0, 10.0) == 10.0
    assert daly_interval(1e9, 10.0) == 10.0


@pytest.mark.parametrize(
    ("trained_s", "failed", "expected_s"),
    [
        pytest.param(0.0, 0, 12 * HOUR_S, id="at the start only the belief counts"),
        pytest.param(0.0, 1, 6 * HOUR_S, id="a failure at once halves it"),
        pytest.param(24 * HOUR_S, 0, 36 * HOUR_S, id="a day without one adds a day"),
        pytest.param(1000 * HOUR_S, 99, 10.12 * HOUR_S, id="in the long run only what was seen counts"),
    ],
)
def test_the_belief_is_worth_one_failure(trained_s: float, failed: int, expected_s: float) -> None:
    assert time_between_failures(2.0, trained_s, failed) == pytest.approx(expected_s)


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan])
def test_a_belief_that_nothing_ever_fails_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="failures_per_day"):
        time_between_failures(rate, 0.0, 0)


def test_the_choice_is_the_formulas_where_no_bound_is_in_the_way() -> None:
    choice = choose(MEASURED, failures_per_day=1.0, certify_after_steps=1000)
    assert choice.steps == round(daly_interval(1.2, 18 * HOUR_S) / 5.0) == 79
    assert choice.message == (
        "every 79 steps (7 min): a save stops training for 1.2 s, a failure is expected every 18 h (2 in 30 h so far)"
    )


def test_the_choice_is_no_longer_than_what_certifies_a_checkpoint() -> None:
    choice = choose(MEASURED, failures_per_day=1.0, certify_after_steps=50)
    assert choice.steps == 50
    assert choice.message.endswith(
        "; for that alone 79 steps would be best, but a loss incident should not lose more than twice the 50 that "
        "certify a checkpoint"
    )


def test_saves_never_take_more_than_a_twentieth_of_the_time_whatever_the_horizon_wants() -> None:
    measured = replace(MEASURED, step_s=0.1, save_s=3.0)
    choice = choose(measured, failures_per_day=1.0, certify_after_steps=50)
    assert choice.steps == 228
    assert 1.2 / (228 * 0.1 + 1.2) <= 0.05 < 1.2 / (227 * 0.1 + 1.2)
    assert choice.message.endswith(
        "but saves may take 5% of the time at most; that goes before the 50 that certify a checkpoint"
    )


def test_a_save_is_not_due_before_the_one_before_it_can_be_done() -> None:
    measured = replace(MEASURED, step_s=0.1, blocked_s=0.2, save_s=30.0)
    choice = choose(measured, failures_per_day=1.0, certify_after_steps=50)
    assert choice.steps == 300
    assert "but a save takes 30 s in all, and the next one waits for it" in choice.message


def test_failures_that_come_often_shorten_the_interval() -> None:
    steps = [
        choose(replace(MEASURED, failures=count), failures_per_day=1.0, certify_after_steps=1000).steps
        for count in (0, 2, 10, 50)
    ]
    assert steps == sorted(steps, reverse=True)
    assert len(set(steps)) == 4


def test_before_anything_is_measured_the_longest_allowed_is_chosen() -> None:
    assert choose_unmeasured(50).steps == 50
    assert choose_unmeasured(0).steps == 1


def test_the_first_choice_that_was_measured_is_announced_even_if_it_is_the_same() -> None:
    choice = choose(MEASURED, failures_per_day=1.0, certify_after_steps=50)
    assert choice.steps == choose_unmeasured(50).steps
    assert replaces(choice, in_force(choose_unmeasured(50)))


@pytest.mark.parametrize(
    ("steps", "before", "changes"),
    [
        pytest.param(100, 100, False, id="the same"),
        pytest.param(125, 100, False, id="a quarter more"),
        pytest.param(126, 100, True, id="just over a quarter more"),
        pytest.param(75, 100, False, id="a quarter less"),
        pytest.param(74, 100, True, id="just over a quarter less"),
    ],
)
def test_an_interval_stays_until_another_is_better_by_a_quarter(steps: int, before: int, changes: bool) -> None:
    choice = Choice(steps=steps, shortest=1, longest=1000, message="")
    assert replaces(choice, in_force(choice, before)) is changes


@pytest.mark.parametrize(
    ("before", "changes"),
    [pytest.param(99, True, id="too short"), pytest.param(111, True, id="too long"), (100, False), (110, False)],
)
def test_an_interval_out_of_bounds_is_left_however_near_the_best_is(before: int, changes: bool) -> None:
    choice = Choice(steps=105, shortest=100, longest=110, message="")
    assert replaces(choice, in_force(choice, before)) is changes


def test_a_cost_that_wavers_about_the_bounds_does_not_change_the_interval_with_every_save() -> None:
    announced: list[int] = []
    before = in_force(choose_unmeasured(50))
    for turn in range(100):
        measured = replace(MEASURED, step_s=0.1, save_s=1.0, blocked_s=0.26 + 0.01 * (turn % 2))
        choice = choose(measured, failures_per_day=1.0, certify_after_steps=50)
        if replaces(choice, before):
            before = in_force(choice)
            announced.append(choice.steps)
    assert announced == [50, 52]


SECONDS = st.floats(0, 1e308)


@given(
    step_s=st.floats(0, 1e308, exclude_min=True),
    blocked_s=SECONDS,
    save_s=SECONDS,
    trained_s=SECONDS,
    failed=st.integers(0, 10**9),
    failures_per_day=st.floats(0, 1e308, exclude_min=True),
    horizon=st.integers(0, 10**12),
)
def test_a_choice_is_a_whole_number_of_steps_within_its_bounds_whatever_was_measured(
    step_s: float,
    blocked_s: float,
    save_s: float,
    trained_s: float,
    failed: int,
    failures_per_day: float,
    horizon: int,
) -> None:
    measured = Measured(step_s=step_s, blocked_s=blocked_s, save_s=save_s, trained_s=trained_s, failures=failed)
    choice = choose(measured, failures_per_day=failures_per_day, certify_after_steps=horizon)
    assert isinstance(choice.steps, int)
    assert 1 <= choice.shortest <= choice.steps <= choice.longest
    assert all(math.isfinite(value) for value in choice.numbers.values())
    assert "nan" not in choice.message
    assert not replaces(choice, in_force(choice))
    assert choose(measured, failures_per_day=failures_per_day, certify_after_steps=horizon) == choice


@given(
    step_s=st.floats(1e-3, 1e3),
    blocked_s=st.floats(0, 1e4),
    more_s=st.floats(0, 1e4),
    trained_s=st.floats(0, 1e9),
    failed=st.integers(0, 1000),
    failures_per_day=st.floats(1e-3, 1e3),
    horizon=st.integers(0, 10_000),
)
def test_the_bounds_hold_for_every_training(
    step_s: float,
    blocked_s: float,
    more_s: float,
    trained_s: float,
    failed: int,
    failures_per_day: float,
    horizon: int,
) -> None:
    save_s = blocked_s + more_s
    measured = Measured(step_s=step_s, blocked_s=blocked_s, save_s=save_s, trained_s=trained_s, failures=failed)
    steps = choose(measured, failures_per_day=failures_per_day, certify_after_steps=horizon).steps
    training_s = steps * step_s
    assert blocked_s <= (training_s + blocked_s) * 0.05 * (1 + 1e-9)
    assert training_s >= save_s * (1 - 1e-9)
    if steps > max(horizon, 1):
        shorter_s = training_s - step_s
        assert blocked_s > (shorter_s + blocked_s) * 0.05 * (1 - 1e-9) or shorter_s < save_s * (1 + 1e-9)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        pytest.param({"step_s": 0.0}, "step_s is 0", id="steps that take no time"),
        pytest.param({"step_s": math.nan}, "step_s is nan", id="steps of unknown length"),
        pytest.param({"blocked_s": -1.0}, "blocked_s is -1.0", id="a save that gives time back"),
        pytest.param({"save_s": math.inf}, "save_s is inf", id="a save without end"),
        pytest.param({"failures": -1}, "failures is -1", id="less than no failures"),
    ],
)
def test_what_no_clock_shows_is_refused(change: dict[str, float], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        replace(MEASURED, **change)


def commit(number: int, seconds: float, blocked_s: float) -> ev.CheckpointCommitted:
    checkpoint = ev.Checkpoint(name=f"s{number}", step=number, position=number, branch=0, save_number=number)
    return ev.CheckpointCommitted(attempt=1, checkpoint=checkpoint, seconds=seconds, blocked_s=blocked_s)


def test_the_usual_save_is_the_median_of_the_newest_five() -> None:
    commits = [commit(number, 10.0 * number, float(number)) for number in (9, 9, 9, 1, 5, 2, 90, 3)]
    assert usual_save(commits) == (3.0, 30.0)
    assert usual_save(commits[:1]) == (9.0, 90.0)


def test_a_save_that_does_not_say_how_long_training_waited_stopped_it_all_the_time() -> None:
    assert usual_save([commit(1, 4.0, 0.0)]) == (4.0, 4.0)


@pytest.mark.parametrize(
    ("story", "count"),
    [
        pytest.param("10+ 20+", 0, id="no trouble"),
        pytest.param("10+ crash:A 20 hang 30 node 40 oom:B 50", 4, id="each kind of failure"),
        pytest.param("10+ 20+ 30 loss@33 30", 0, id="a loss incident"),
        pytest.param("10+ preempt 20 deadline 30 terminate", 0, id="ends that save before"),
    ],
)
def test_failures_are_the_ends_that_lose_steps(told: Callable[..., Any], story: str, count: int) -> None:
    assert failures(told(story).history) == count


def test_an_attempt_that_ended_before_it_trained_is_no_failure(told: Callable[..., Any]) -> None:
    run = told("10+ crash:A")
    number = run.history.next_attempt
    run.record(ev.AttemptStarted(attempt=number, claim=1, data_seed=0, host="node1"))
    run.record(ev.AttemptEnded(attempt=number, cause="crash", message="it never began"))
    assert failures(run.history) == 1
