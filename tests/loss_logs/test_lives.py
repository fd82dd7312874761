"""A log that goes back shows each life of its training, so that no incident is lost with what was replaced."""

from __future__ import annotations

import math
from collections.abc import Iterable

from hpc_resume.loss_logs import LoggedPoint, LossCurve
from hpc_resume.loss_logs.lives import LEAST_POINTS, MOST_LIVES, make_curves


def points(steps: Iterable[int], loss: float = 3.0) -> list[LoggedPoint]:
    return [LoggedPoint(step=step, loss=loss) for step in steps]


def spans(curves: list[LossCurve]) -> dict[str, tuple[int, int, int]]:
    return {curve.name: (curve.points[0].step, curve.points[-1].step, len(curve.points)) for curve in curves}


def losses(curve: LossCurve) -> dict[int, float]:
    return {point.step: point.loss for point in curve.points}


def test_a_log_that_only_goes_on_is_one_curve_without_a_note() -> None:
    (curve,) = make_curves("a", points(range(100)))
    assert (len(curve.points), curve.notes, curve.life) == (100, (), None)
    assert make_curves("a", []) == []


def test_what_a_resumed_training_replaced_is_a_life_from_its_beginning_on() -> None:
    curves = make_curves("a", [*points(range(1, 131), 3), *points(range(101, 201), 2)], ["read somehow"])
    assert spans(curves) == {"a, life 1": (1, 130, 130), "a": (1, 200, 200)}
    assert [curve.life for curve in curves] == [1, None]
    assert (losses(curves[0])[130], losses(curves[1])[100], losses(curves[1])[130]) == (3, 3, 2)
    assert curves[0].notes == ("read somehow", "this life ends at step 130; the log then goes back to step 101")
    assert curves[1].notes == (
        "read somehow",
        "the step goes back 1 time, as when a training is resumed or begins anew: 30 points were replaced by later "
        "ones of the same steps, and the training as it was before is shown as life 1",
    )


def test_a_life_has_what_it_was_built_on() -> None:
    log = [*points(range(1, 51), 1), *points(range(41, 91), 2), *points(range(71, 101), 3)]
    first, second, last = make_curves("a", log)
    assert spans([first, second, last]) == {"a, life 1": (1, 50, 50), "a, life 2": (1, 90, 90), "a": (1, 100, 100)}
    assert (losses(second)[40], losses(second)[41]) == (1, 2)
    assert [losses(last)[step] for step in (40, 41, 70, 71)] == [1, 2, 2, 3]
    assert any("shown as life 1 to 2" in note for note in last.notes)


def test_several_trainings_in_one_log_are_lives_of_their_own() -> None:
    curves = make_curves("a", [*points(range(1, 81)), *points(range(1, 21)), *points(range(1, 31))])
    assert spans(curves) == {"a, life 1": (1, 80, 80), "a, life 2": (1, 20, 20), "a": (1, 30, 30)}


def test_short_lives_are_only_counted() -> None:
    log = points(range(100))
    for _ in range(50):
        log += points(range(90, 90 + LEAST_POINTS - 1))
    first, last = make_curves("a", [*log, *points(range(90, 200))])
    assert (len(first.points), len(last.points)) == (100, 200)
    assert "lives of fewer than 10 points of their own, not shown: 50" in last.notes
    assert len(make_curves("a", [*points(range(9)), *points(range(100))])) == 1


def test_a_short_life_that_ended_with_a_loss_that_is_no_number_is_shown() -> None:
    log = [*points(range(100)), *points([90, 91]), *points([92], math.nan), *points(range(90, 200))]
    curves = make_curves("a", log)
    assert [curve.life for curve in curves] == [1, 2, None]
    assert math.isnan(curves[1].points[-1].loss)


def test_no_more_than_so_many_lives_are_shown_and_the_rest_is_counted() -> None:
    log = [point for _ in range(50) for point in points(range(20))]
    curves = make_curves("a", log)
    assert len(curves) == MOST_LIVES
    assert curves[-1].name == "a"
    assert "further lives, not shown: 30; split the log to see them" in curves[-1].notes


def test_several_values_of_a_step_in_a_row_are_no_lives_and_the_last_one_counts() -> None:
    log = [LoggedPoint(step=step, loss=step + rank / 10) for step in range(50) for rank in range(4)]
    (curve,) = make_curves("a", log)
    assert losses(curve) == {step: step + 0.3 for step in range(50)}
    assert curve.notes == ("several values per step: the last one counts",)


def test_ranks_that_overtake_each_other_are_no_lives() -> None:
    log = [LoggedPoint(step=step, loss=step + rank / 10) for step in range(50) for rank in range(4)]
    log[100:103] = [log[101], log[102], log[104]]
    log[103:105] = [LoggedPoint(step=25, loss=0.5), LoggedPoint(step=26, loss=0.25)]
    (curve,) = make_curves("a", log)
    assert (losses(curve)[25], losses(curve)[26]) == (0.5, 26.3)
    assert curve.notes == ("several values per step: the last one counts",)
