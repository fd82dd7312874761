"""The order of any segments, compared with one that shuffles whole lists."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from hpc_resume.data_order import DataOrder, Permutation, Segment, Window

EPOCHS = 6


def shuffled(items: list[int], key: tuple[int, ...]) -> list[int]:
    permutation = Permutation(len(items), key)
    return [items[permutation(index)] for index in range(len(items))]


class ListOfOneEpoch:
    """The plain way to do it: keep the whole order of an epoch, and change it with each segment as it comes."""

    def __init__(self, num_samples: int, seed: int, epoch: int) -> None:
        self.seed, self.epoch = seed, epoch
        self.first, self.end = epoch * num_samples, (epoch + 1) * num_samples
        self.free = shuffled(list(range(num_samples)), (seed, epoch, 0))
        self.held: list[int] = []
        self.changed_from_base = False
        self.dropped: set[int] = set()

    def apply(self, segment: Segment) -> None:
        if segment.start >= self.end:
            return
        key = (self.seed, self.epoch, segment.number)
        in_window = [self.in_window(segment, place) for place in range(len(self.free))]
        if segment.start < self.first and not self.changed_from_base and not any(in_window):
            self.free = shuffled(sorted(self.free), key)
            return
        self.changed_from_base = True
        start = max(0, segment.start - self.first)
        rest = list(zip(self.free, in_window, strict=True))[start:]
        caught = [sample for sample, inside in rest if inside]
        self.free = self.free[:start] + shuffled([sample for sample, inside in rest if not inside], key)
        self.held = caught + self.held
        if segment.window and segment.window.drop:
            self.dropped |= set(caught)

    def in_window(self, segment: Segment, place: int) -> bool:
        window = segment.window
        return window is not None and window.start <= self.first + place < window.end


@st.composite
def orders(draw: st.DrawFn) -> DataOrder:
    """Any segments over a few epochs of a small data set; they start in any order, windows lie anywhere."""
    n = draw(st.integers(1, 24))
    span = EPOCHS * n
    starts = draw(st.lists(st.integers(0, span), max_size=7))
    segments: list[Segment] = []
    for start in starts:
        window = None
        if draw(st.booleans()):
            onset = draw(st.integers(max(0, start - 3), span))
            window = Window(onset, onset + draw(st.integers(1, 2 * n)), draw(st.booleans()))
        number = draw(st.integers(1, 3)) + (segments[-1].number if segments else 0)
        segment = Segment(start, number, window)
        segments.append(segment if keeps_a_sample(n, (*segments, segment)) else hold(segment))
    return DataOrder(n, draw(st.integers(-3, 2**70)), tuple(segments))


def keeps_a_sample(n: int, segments: tuple[Segment, ...]) -> bool:
    try:
        DataOrder(n, 0, segments)
    except ValueError:
        return False
    return True


def hold(segment: Segment) -> Segment:
    assert segment.window is not None
    return replace(segment, window=replace(segment.window, drop=False))


@settings(max_examples=300, deadline=None, database=None)
@given(orders())
def test_every_position_is_as_if_whole_lists_had_been_shuffled(order: DataOrder) -> None:
    n = order.num_samples
    stream: list[int] = []
    for epoch in range(EPOCHS):
        lists = ListOfOneEpoch(n, order.seed, epoch)
        for segment in order.segments:
            lists.apply(segment)
        expected = lists.free + lists.held
        positions = range(epoch * n, (epoch + 1) * n)
        assert [order.sample_at(position) for position in positions] == expected
        assert {order.sample_at(p) for p in positions if order.is_dropped(p)} == lists.dropped
        gaps = [place for gap in order.dropped_places(epoch) for place in gap]
        assert [expected[place] for place in gaps] == [s for s in expected if s in lists.dropped]
        stream += [sample for sample in expected if sample not in lists.dropped]
    assert order.take(0, len(stream))[0] == stream


@settings(max_examples=300, deadline=None, database=None)
@given(orders())
def test_a_segment_changes_nothing_before_its_start(order: DataOrder) -> None:
    for count, segment in enumerate(order.segments):
        before = replace(order, segments=order.segments[:count])
        after = replace(order, segments=order.segments[: count + 1])
        for position in range(segment.start):
            assert after.sample_at(position) == before.sample_at(position)
            assert after.is_dropped(position) == before.is_dropped(position)


@settings(max_examples=300, deadline=None, database=None)
@given(orders())
def test_samples_of_a_window_come_last_in_their_epoch_and_stay_last(order: DataOrder) -> None:
    n = order.num_samples
    held: list[list[int]] = [[] for _ in range(EPOCHS)]
    for count, segment in enumerate(order.segments):
        before = replace(order, segments=order.segments[:count])
        after = replace(order, segments=order.segments[: count + 1])
        for epoch in range(EPOCHS):
            end = (epoch + 1) * n
            if segment.window is not None:
                first = max(segment.window.start, segment.start, epoch * n)
                last = min(segment.window.end, end - len(held[epoch]))
                held[epoch] = [before.sample_at(p) for p in range(first, last)] + held[epoch]
            tail = range(end - len(held[epoch]), end)
            assert [after.sample_at(position) for position in tail] == held[epoch]


@settings(max_examples=150, deadline=None, database=None)
@given(orders(), st.lists(st.integers(0, 40), max_size=8), st.integers(0, 60))
def test_the_stream_does_not_depend_on_how_much_is_taken_at_once(
    order: DataOrder, batches: list[int], start: int
) -> None:
    position, taken = start, []
    for batch in batches:
        samples, position = order.take(position, batch)
        taken += samples
    assert order.take(start, sum(batches)) == (taken, position)


@settings(max_examples=300, deadline=None, database=None)
@given(orders(), st.integers(0, 60), st.integers(0, 100))
def test_advancing_ends_where_taking_does(order: DataOrder, start: int, count: int) -> None:
    assert order.advance(start, count) == order.take(start, count)[1]


@settings(max_examples=100, deadline=None, database=None)
@given(orders())
def test_advancing_from_anywhere_near_dropped_samples_ends_where_taking_does(order: DataOrder) -> None:
    n = order.num_samples
    gaps = [(epoch * n, gap) for epoch in range(EPOCHS) for gap in order.dropped_places(epoch)]
    for epoch_start, gap in gaps:
        for start in {max(0, epoch_start + near) for end in (gap.start, gap.stop) for near in (end - 2, end - 1, end)}:
            for count in range(4):
                assert order.advance(start, count) == order.take(start, count)[1]
