"""Trainings with any number of rollbacks: what the surviving branch has seen."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hpc_resume.data_order import DataOrder, Segment, Window, rank_share


@dataclass(frozen=True)
class Layout:
    """How a stretch of training is spread over ranks; drawn anew after each resume."""

    world_size: int
    micro_batch: int
    accumulation: int

    @property
    def batch(self) -> int:
        return self.world_size * self.micro_batch * self.accumulation


@dataclass
class Training:
    """What a run does with the order, and what is left on its surviving branch."""

    order: DataOrder
    position: int = 0
    seen: list[tuple[int, int]] = field(default_factory=list)
    """Position and sample, in the order of training."""
    edges: list[int] = field(default_factory=lambda: [0])
    """Positions at which a checkpoint may lie."""
    resumes: int = 0
    held: dict[int, list[int]] = field(default_factory=dict)
    """Of each epoch: the samples that windows hold, in the order in which they have to come last."""
    dropped: dict[int, list[int]] = field(default_factory=dict)
    """Of each epoch: those of them that are left out."""

    def train(self, steps: int, layout: Layout) -> None:
        for _ in range(steps):
            samples, after = self.order.take(self.position, layout.batch)
            shares = [
                rank_share(samples, rank, layout.world_size, layout.micro_batch) for rank in range(layout.world_size)
            ]
            assert all(len(share) == layout.accumulation for share in shares)
            dealt = [s for micro_step in zip(*shares, strict=True) for batch in micro_step for s in batch]
            assert dealt == samples
            places = [p for p in range(self.position, after) if not self.order.is_dropped(p)]
            self.seen += zip(places, dealt, strict=True)
            assert self.order.advance(self.position, layout.batch) == after
            self.position = after
            self.edges.append(after)

    def resume(self, edge: int, *, perturb: bool, window: Window | None) -> list[tuple[int, int]]:
        """Go back to `edge`; returns what was seen from there on and is now abandoned."""
        self.resumes += 1
        if perturb:
            self.append(Segment(edge, self.resumes, window))
        abandoned = [(p, s) for p, s in self.seen if p >= edge]
        self.seen = [(p, s) for p, s in self.seen if p < edge]
        self.edges = [known for known in self.edges if known <= edge]
        self.position = edge
        return abandoned

    def append(self, segment: Segment) -> None:
        """Change the order; hold a window where dropping it would leave an epoch empty."""
        try:
            self.order = replace(self.order, segments=(*self.order.segments, segment))
        except ValueError:
            assert segment.window is not None
            segment = replace(segment, window=replace(segment.window, drop=False))
            self.order = replace(self.order, segments=(*self.order.segments, segment))
        if segment.window:
            self.note_held(segment.start, segment.window)

    def note_held(self, edge: int, window: Window) -> None:
        """Work out what a window holds from what was trained on, without asking the order."""
        in_the_air = [(p, s) for p, s in self.seen if max(edge, window.start) <= p < window.end]
        n = self.order.num_samples
        for epoch in {p // n for p, _ in in_the_air}:
            held = self.held.get(epoch, [])
            newly = [s for p, s in in_the_air if p // n == epoch and s not in held]
            self.held[epoch] = newly + held
            if window.drop:
                self.dropped[epoch] = newly + self.dropped.get(epoch, [])


layouts = st.builds(Layout, st.integers(1, 4), st.integers(1, 3), st.integers(1, 2))


def draw_window(data: st.DataObject, edge: int, reached: int, *, drops: bool) -> Window | None:
    """Samples from an onset to a detection; a margin may put the onset before the resumed checkpoint."""
    if reached <= edge or not data.draw(st.booleans(), label="window"):
        return None
    onset = data.draw(st.integers(max(0, edge - 3), reached - 1), label="onset")
    detection = data.draw(st.integers(onset + 1, reached), label="detection")
    return Window(onset, detection, drop=drops and data.draw(st.booleans(), label="drop"))


def live_through(data: st.DataObject, *, drops: bool) -> Training:
    """Train and resume a few times, and check at each resume what has to be true whatever happened before."""
    n = data.draw(st.integers(1, 40), label="num_samples")
    run = Training(DataOrder(n, data.draw(st.integers(0, 5), label="seed")))
    for _ in range(data.draw(st.integers(0, 6), label="resumes")):
        run.train(data.draw(st.integers(0, 6), label="steps"), data.draw(layouts, label="layout"))
        edge = data.draw(st.sampled_from(run.edges), label="edge")
        perturb = data.draw(st.booleans(), label="perturb")
        window = draw_window(data, edge, run.position, drops=drops) if perturb else None
        seen_before, edges_before = run.seen, run.edges
        abandoned = run.resume(edge, perturb=perturb, window=window)
        assert all(run.order.sample_at(p) == s and not run.order.is_dropped(p) for p, s in run.seen)
        if not perturb:
            assert run.order.take(edge, len(abandoned))[0] == [sample for _, sample in abandoned]
        assert seen_before[: len(run.seen)] == run.seen
        assert edges_before[: len(run.edges)] == run.edges
        check_held(run)
    run.train(2 * n, Layout(1, 1, 1))  # to the end of every epoch that a window can reach into, and beyond
    return run


def check_held(run: Training) -> None:
    """Compare what windows hold, and what of it is dropped, with what was in the air at each incident."""
    n = run.order.num_samples
    last = max([*run.held, run.position // n]) + 1
    for epoch in range(last + 1):
        first, end = epoch * n, (epoch + 1) * n
        held = run.held.get(epoch, [])
        assert [run.order.sample_at(p) for p in range(end - len(held), end)] == held
        dropped = [run.order.sample_at(p) for p in range(first, end) if run.order.is_dropped(p)]
        assert dropped == run.dropped.get(epoch, [])


def by_epoch(run: Training) -> list[list[int]]:
    """Return the samples seen in each epoch that is over."""
    n = run.order.num_samples
    epochs: list[list[int]] = [[] for _ in range(run.position // n + 1)]
    for position, sample in run.seen:
        epochs[position // n].append(sample)
    return epochs[: run.position // n]


@settings(max_examples=200, deadline=None, database=None)
@given(st.data())
def test_every_finished_epoch_has_every_sample_exactly_once(data: st.DataObject) -> None:
    run = live_through(data, drops=False)
    for epoch in by_epoch(run):
        assert sorted(epoch) == list(range(run.order.num_samples))


@settings(max_examples=200, deadline=None, database=None)
@given(st.data())
def test_what_a_finished_epoch_lacks_is_what_was_dropped(data: st.DataObject) -> None:
    run = live_through(data, drops=True)
    n = run.order.num_samples
    for number, epoch in enumerate(by_epoch(run)):
        named = [run.order.sample_at(number * n + place) for gap in run.order.dropped_places(number) for place in gap]
        assert sorted(epoch + named) == list(range(n))


@settings(max_examples=100, deadline=None, database=None)
@given(st.data())
def test_the_surviving_branch_is_what_its_order_says_from_the_start(data: st.DataObject) -> None:
    run = live_through(data, drops=True)
    assert [sample for _, sample in run.seen] == run.order.take(0, len(run.seen))[0]


@settings(max_examples=200, deadline=None, database=None)
@given(st.data())
def test_a_window_holds_what_was_in_the_air_and_nothing_else(data: st.DataObject) -> None:
    run = live_through(data, drops=True)
    n = run.order.num_samples
    edge = data.draw(st.sampled_from(run.edges[:-1]), label="edge of the last incident")
    onset = data.draw(st.integers(max(0, edge - 3), run.position - 1), label="onset")
    detection = data.draw(st.integers(onset + 1, min(onset + n, run.position)), label="detection")
    held_before = {(epoch, s) for epoch, held in run.held.items() for s in held}
    dropped_before = all_dropped(run)
    abandoned = run.resume(edge, perturb=True, window=Window(onset, detection, drop=True))
    window = run.order.segments[-1].window
    assume(window is not None and window.drop)  # what is dropped can be told from the rest; what is held can't
    in_the_air = {(p // n, s) for p, s in abandoned if onset <= p < detection}
    assert all_dropped(run) - dropped_before == in_the_air - held_before
    assert dropped_before <= all_dropped(run)
    check_held(run)


def all_dropped(run: Training) -> set[tuple[int, int]]:
    """Return epoch and sample of all that is left out of the epochs that were reached."""
    n, order = run.order.num_samples, run.order
    reached = max(p for p, _ in run.seen) if run.seen else 0
    end = n * (max([reached // n, *run.held]) + 2)
    return {(p // n, order.sample_at(p)) for p in range(end) if order.is_dropped(p)}


@settings(max_examples=200, deadline=None, database=None)
@given(st.data(), st.integers(1, 30), st.integers(0, 30), st.integers(0, 30))
def test_falling_back_to_before_a_segment_without_perturbing_keeps_it_in_force(
    data: st.DataObject, before: int, between: int, after: int
) -> None:
    run = live_through(data, drops=True)
    older = run.position
    run.train(before, Layout(1, 1, 1))
    newer = run.position
    run.train(between, Layout(1, 1, 1))
    window = Window(newer, run.position) if between else None
    run.resume(newer, perturb=True, window=window)
    run.train(after, Layout(1, 1, 1))
    perturbed = run.seen
    run.resume(older, perturb=False, window=None)
    check_held(run)
    run.train(before + after, Layout(1, 1, 1))
    assert run.seen == perturbed


@settings(max_examples=100, deadline=None, database=None)
@given(st.data(), layouts, layouts)
def test_a_resume_with_other_ranks_and_batches_sees_the_same_samples(
    data: st.DataObject, one: Layout, other: Layout
) -> None:
    run = live_through(data, drops=True)
    start = run.position
    run.train(other.batch, one)
    with_one = run.seen[:]
    run.resume(start, perturb=False, window=None)
    run.train(one.batch, other)
    assert run.seen == with_one
