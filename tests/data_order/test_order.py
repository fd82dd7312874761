"""The order of all epochs, by example."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from hpc_resume.data_order import DataOrder, Permutation, Segment, Window, rank_share


def samples(order: DataOrder, start: int, end: int) -> list[int]:
    return [order.sample_at(position) for position in range(start, end)]


def test_each_epoch_has_every_sample_in_an_order_of_its_own() -> None:
    order = DataOrder(50, 3)
    epochs = [samples(order, start, start + 50) for start in (0, 50, 100)]
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_the_next_seed_is_not_the_next_epoch() -> None:
    seeds = [samples(DataOrder(1000, seed), 0, 3000) for seed in (3, 4)]
    for shift in (0, 1000, 2000):
        same = sum(a == b for a, b in zip(seeds[0][shift:], seeds[1], strict=False))
        assert same < 15  # up to 3 are expected by chance


def test_a_segment_changes_the_order_from_its_start_on() -> None:
    before, after = DataOrder(100, 1), DataOrder(100, 1, (Segment(40, 1),))
    assert samples(before, 0, 40) == samples(after, 0, 40)
    assert samples(before, 40, 100) != samples(after, 40, 100)
    assert sorted(samples(before, 40, 100)) == sorted(samples(after, 40, 100))
    assert samples(before, 100, 200) != samples(after, 100, 200)


def test_a_window_comes_last_in_its_epoch() -> None:
    before = DataOrder(100, 1)
    after = DataOrder(100, 1, (Segment(40, 1, Window(50, 60)),))
    assert samples(after, 90, 100) == samples(before, 50, 60)


def test_a_second_window_comes_before_the_first() -> None:
    one = DataOrder(100, 1, (Segment(40, 1, Window(50, 60)),))
    two = DataOrder(100, 1, (*one.segments, Segment(45, 2, Window(70, 75))))
    assert samples(two, 85, 90) == samples(one, 70, 75)
    assert samples(two, 90, 100) == samples(one, 90, 100)


def test_a_sample_is_held_once() -> None:
    one = DataOrder(100, 1, (Segment(40, 1, Window(50, 60)),))
    two = DataOrder(100, 1, (*one.segments, Segment(45, 2, Window(85, 95))))
    assert samples(two, 85, 90) == samples(one, 85, 90)
    assert samples(two, 90, 100) == samples(one, 90, 100)


def test_a_resume_among_the_held_samples_leaves_their_epoch_alone() -> None:
    one = DataOrder(100, 1, (Segment(40, 1, Window(50, 60)),))
    two = DataOrder(100, 1, (*one.segments, Segment(93, 2)))
    assert samples(two, 0, 100) == samples(one, 0, 100)
    assert samples(two, 100, 200) != samples(one, 100, 200)


def test_a_segment_acts_also_after_one_that_started_among_the_held_samples() -> None:
    one = DataOrder(100, 1, (Segment(40, 1, Window(50, 60)),))
    two = DataOrder(100, 1, (*one.segments, Segment(93, 2)))
    three = DataOrder(100, 1, (*two.segments, Segment(45, 3)))
    assert samples(three, 45, 90) != samples(two, 45, 90)
    assert sorted(samples(three, 45, 90)) == sorted(samples(two, 45, 90))


def test_a_window_over_the_end_of_an_epoch_is_held_in_both() -> None:
    before = DataOrder(100, 1)
    window = (Segment(40, 1, Window(90, 120)),)
    for later in ((), (Segment(95, 2),), (Segment(100, 2),), (Segment(41, 2), Segment(150, 3))):
        after = DataOrder(100, 1, (*window, *later))
        assert samples(after, 90, 100) == samples(before, 90, 100)
        assert samples(after, 180, 200) == samples(before, 100, 120)
        assert sorted(samples(after, 100, 200)) == list(range(100))


def test_a_window_over_several_epochs_is_held_in_each() -> None:
    before, after = DataOrder(10, 1), DataOrder(10, 1, (Segment(5, 1, Window(8, 33)),))
    assert samples(after, 8, 30) == samples(before, 8, 30)
    assert samples(after, 37, 40) == samples(before, 30, 33)


def test_a_window_is_of_the_order_before_its_segment_in_a_later_epoch_too() -> None:
    before = DataOrder(100, 1, (Segment(30, 1),))
    after = DataOrder(100, 1, (Segment(30, 1), Segment(95, 2, Window(97, 120))))
    assert samples(after, 180, 200) == samples(before, 100, 120)


def test_a_segment_may_start_before_an_earlier_one_and_acts_on_its_order() -> None:
    one = DataOrder(100, 1, (Segment(60, 1),))
    two = DataOrder(100, 1, (*one.segments, Segment(20, 2)))
    without_the_first = DataOrder(100, 1, (Segment(20, 2),))
    assert samples(two, 0, 20) == samples(one, 0, 20)
    assert samples(two, 20, 60) != samples(one, 20, 60)
    assert sorted(samples(two, 20, 100)) == sorted(samples(one, 20, 100))
    assert samples(two, 20, 100) != samples(without_the_first, 20, 100)


def test_a_window_is_of_the_order_before_also_when_training_goes_back_to_before_an_earlier_segment() -> None:
    one = DataOrder(100, 1, (Segment(60, 1),))
    two = DataOrder(100, 1, (*one.segments, Segment(20, 2, Window(70, 80))))
    assert samples(two, 90, 100) == samples(one, 70, 80)
    assert samples(one, 70, 80) != samples(DataOrder(100, 1), 70, 80)


@pytest.mark.parametrize("start", [0, 10, 40, 100, 110, 139])
def test_held_samples_stay_last_when_training_goes_back_to_before_their_segment(start: int) -> None:
    one = DataOrder(100, 1, (Segment(140, 1, Window(150, 160)),))
    two = DataOrder(100, 1, (*one.segments, Segment(start, 2)))
    assert samples(two, 190, 200) == samples(one, 190, 200)
    assert samples(two, 140, 190) != samples(one, 140, 190)
    assert sorted(samples(two, 100, 200)) == list(range(100))


def test_a_segment_acts_also_after_one_of_a_later_epoch() -> None:
    only = DataOrder(100, 1, (Segment(40, 2),))
    both = DataOrder(100, 1, (Segment(250, 1), Segment(40, 2)))
    assert samples(both, 0, 200) == samples(only, 0, 200)
    assert samples(both, 0, 100) != samples(DataOrder(100, 1), 0, 100)
    assert samples(both, 200, 300) != samples(only, 200, 300)


@pytest.mark.parametrize("starts", [range(1, 90), range(89, 0, -1)], ids=["starts go up", "starts go down"])
def test_segments_of_earlier_epochs_cost_nothing_later(monkeypatch: pytest.MonkeyPatch, starts: range) -> None:
    calls = count_calls(monkeypatch)
    DataOrder(100, 1, tuple(Segment(start, number) for number, start in enumerate(starts, 1))).sample_at(150)
    assert calls == [100]


def test_a_far_position_is_answered_without_a_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    n, far = 10**9, 10**12
    segments = (
        Segment(5, 1),
        Segment(far - 10, 3, Window(far - 5, far + 1000)),
        Segment(far + 7, 4, Window(far + 20, far + 30, drop=True)),
    )
    order = DataOrder(n, 1, segments)
    calls = count_calls(monkeypatch)
    taken, after = order.take(far, 100)
    assert after == far + 100
    assert len(set(taken)) == 100
    assert len(calls) <= 100 * 3
    assert not order.is_dropped(far + n - 1011)
    assert order.is_dropped(far + n - 1010)
    assert order.is_dropped(far + n - 1001)
    assert not order.is_dropped(far + n - 1000)


def count_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the size of each permutation that is asked for one index."""
    calls: list[int] = []
    original = Permutation.__call__

    def counted(self: Permutation, index: int) -> int:
        calls.append(self._size)
        return original(self, index)

    monkeypatch.setattr(Permutation, "__call__", counted)
    return calls


def test_dropped_samples_are_passed_over_and_count_as_consumed() -> None:
    before = DataOrder(100, 1)
    after = DataOrder(100, 1, (Segment(40, 1, Window(50, 60, drop=True)),))
    taken, position = after.take(85, 10)
    assert taken == samples(after, 85, 90) + samples(after, 100, 105)
    assert position == 105
    assert after.dropped_places(0) == (range(90, 100),)
    assert samples(after, 90, 100) == samples(before, 50, 60)
    assert [after.is_dropped(p) for p in (89, 90, 99, 100)] == [False, True, True, False]


def test_taking_from_among_dropped_samples_goes_on_after_them() -> None:
    order = DataOrder(100, 1, (Segment(40, 1, Window(50, 60, drop=True)), Segment(41, 2, Window(42, 44, drop=True))))
    assert order.dropped_places(0) == (range(88, 90), range(90, 100))
    for inside in (88, 89, 90, 99):
        assert order.take(inside, 1) == ([order.sample_at(100)], 101)


def test_taking_stops_right_after_the_last_sample() -> None:
    order = DataOrder(100, 1, (Segment(40, 1, Window(50, 60, drop=True)),))
    assert order.take(85, 5) == (samples(order, 85, 90), 90)
    assert order.take(93, 0) == ([], 93)


@pytest.mark.parametrize(
    ("position", "count", "after"),
    [
        pytest.param(40, 5, 45, id="far from the dropped"),
        pytest.param(85, 5, 90, id="up to the dropped"),
        pytest.param(85, 6, 101, id="over the dropped"),
        pytest.param(93, 0, 93, id="nothing, among the dropped"),
        pytest.param(93, 1, 101, id="from among the dropped"),
        pytest.param(85, 295, 390, id="over epochs that lack nothing, and into the dropped of the last"),
        pytest.param(85, 296, 401, id="over the dropped of the last, too"),
    ],
)
def test_advancing_passes_over_dropped_samples(position: int, count: int, after: int) -> None:
    windows = (Segment(40, 1, Window(50, 60, drop=True)), Segment(335, 2, Window(350, 360, drop=True)))
    order = DataOrder(100, 1, windows)
    assert order.advance(position, count) == after
    taken, end = order.take(position, count)
    places, end_of_places = order.positions(position, count)
    assert end == end_of_places == after
    assert [order.sample_at(place) for place in places] == taken
    assert not any(order.is_dropped(place) for place in places)


def test_advancing_looks_at_no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    order = DataOrder(100, 1, (Segment(40, 1, Window(50, 60, drop=True)),))
    calls = count_calls(monkeypatch)
    assert order.advance(0, 290) == 300
    assert calls == []


def test_a_rank_looks_only_at_its_own_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    order = DataOrder(96, 1)
    taken, _ = order.take(0, 96)
    calls = count_calls(monkeypatch)
    positions, _ = order.positions(0, 96)
    assert calls == []
    mine = [[order.sample_at(p) for p in share] for share in rank_share(positions, 3, 8, 2)]
    assert len(calls) == 96 / 8
    assert mine == rank_share(taken, 3, 8, 2)


@pytest.mark.parametrize("drop", [False, True], ids=["nothing dropped", "dropped"])
def test_advancing_far_walks_over_no_place(drop: bool) -> None:
    n = 10**12
    order = DataOrder(n, 1, (Segment(5, 1, Window(10, 20, drop)),))
    assert order.advance(7, n - 17) == n - 10
    assert order.advance(7, n - 16) == (n + 1 if drop else n - 9)


def test_a_batch_may_span_epochs() -> None:
    order = DataOrder(7, 1)
    assert order.take(5, 20) == (samples(order, 5, 25), 25)


@pytest.mark.parametrize(
    "segments",
    [
        pytest.param((Segment(0, 1, Window(0, 10, drop=True)),), id="one epoch at once"),
        pytest.param((Segment(5, 1, Window(5, 10**12 + 5, drop=True)),), id="many epochs"),
        pytest.param(
            (Segment(0, 1, Window(0, 6, drop=True)), Segment(0, 2, Window(0, 4, drop=True))), id="in two goes"
        ),
        pytest.param(
            (Segment(0, 1, Window(5, 14, drop=True)), Segment(10, 2, Window(10, 16, drop=True))),
            id="in two goes, in the later epoch",
        ),
    ],
)
def test_an_epoch_that_would_be_dropped_whole_is_refused(segments: tuple[Segment, ...]) -> None:
    with pytest.raises(ValueError, match="hold the window instead"):
        DataOrder(10, 1, segments)


def test_a_whole_epoch_may_be_held() -> None:
    order = DataOrder(10, 1, (Segment(0, 1, Window(0, 10)),))
    assert samples(order, 0, 10) == samples(DataOrder(10, 1), 0, 10)


@pytest.mark.parametrize(
    "segments",
    [
        pytest.param((Segment(5, 2), Segment(6, 1)), id="number goes down"),
        pytest.param((Segment(5, 1), Segment(6, 1)), id="number again"),
    ],
)
def test_numbers_that_do_not_go_up_are_refused(segments: tuple[Segment, ...]) -> None:
    with pytest.raises(ValueError, match="never used again and go up"):
        DataOrder(10, 1, segments)


def test_an_empty_data_set_is_refused() -> None:
    with pytest.raises(ValueError, match="1 or more"):
        DataOrder(0, 1)


@pytest.mark.parametrize("method", ["sample_at", "is_dropped"])
def test_a_negative_position_is_refused(method: str) -> None:
    with pytest.raises(ValueError, match="must be 0 or more"):
        getattr(DataOrder(10, 1), method)(-1)


@pytest.mark.parametrize("method", ["take", "positions", "advance"])
@pytest.mark.parametrize(("position", "count"), [(-1, 5), (5, -1)])
@pytest.mark.parametrize("drop", [False, True], ids=["nothing dropped", "dropped"])
def test_going_on_by_or_from_less_than_nothing_is_refused(method: str, position: int, count: int, drop: bool) -> None:
    order = DataOrder(10, 1, (Segment(2, 1, Window(3, 4, drop)),))
    with pytest.raises(ValueError, match="must be 0 or more"):
        getattr(order, method)(position, count)


def test_an_order_can_be_sent_to_another_process() -> None:
    order = DataOrder(100, 1, (Segment(40, 1, Window(50, 60)),))
    copy = pickle.loads(pickle.dumps(order))
    assert copy == order
    assert samples(copy, 0, 200) == samples(order, 0, 200)


def test_a_step_is_dealt_out_by_micro_step_then_rank() -> None:
    step = list(range(12))
    assert rank_share(step, 0, 2, 3) == [[0, 1, 2], [6, 7, 8]]
    assert rank_share(step, 1, 2, 3) == [[3, 4, 5], [9, 10, 11]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param((list(range(10)), 0, 2, 3), "a multiple of 6", id="does not divide"),
        pytest.param(([], 2, 2, 3), "ranks count from 0", id="rank too high"),
        pytest.param(([], -1, 2, 3), "ranks count from 0", id="rank below 0"),
        pytest.param(([], 0, 0, 3), "1 or more", id="no ranks"),
        pytest.param(([], 0, 2, 0), "1 or more", id="no micro batch"),
    ],
)
def test_a_step_that_cannot_be_dealt_out_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rank_share(*arguments)
