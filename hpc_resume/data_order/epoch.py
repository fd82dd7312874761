"""The order of one epoch: a shuffle of all samples, and what each segment that acts in it did to that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hpc_resume.data_order.permutation import Permutation
from hpc_resume.data_order.segment import Segment, Window

# A "place" is a position inside one epoch, from 0. "Held" places are those at the end of the epoch whose samples
# a window put there; the others are "free".


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """What one segment does to one epoch: holds its window, and shuffles what stays free from `start` on."""

    start: int
    """First place that may change."""

    window: range
    """Free places, in the order before, whose samples are now held."""

    held_start: int
    """First place of the samples newly held."""

    held_end: int
    """Place after them; from here on lie the samples that earlier segments hold."""

    shuffle: Permutation
    """Of the places that stay free, counted from `start`."""

    def place_before(self, place: int) -> int:
        """Return where the sample at `place` was in the order before this layer."""
        if not self.start <= place < self.held_end:
            return place
        if place >= self.held_start:
            return self.window.start + place - self.held_start
        before = self.start + self.shuffle(place - self.start)
        return before if before < self.window.start else before + len(self.window)


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochOrder:
    """The order of one epoch, ready to be asked for single places."""

    size: int
    """Samples in the epoch, dropped ones included."""

    base: Permutation
    """The order before all layers."""

    layers: tuple[Layer, ...]
    """Earliest first."""

    dropped: tuple[range, ...]
    """Places of the dropped samples, ascending."""

    def sample(self, place: int) -> int:
        """Return the sample at `place`."""
        for layer in reversed(self.layers):
            place = layer.place_before(place)
        return self.base(place)

    def is_dropped(self, place: int) -> bool:
        """Say whether the sample at `place` is left out."""
        return any(place in gap for gap in self.dropped)

    def kept_places(self, place: int) -> Iterator[range]:
        """Yield the places from `place` on, less the dropped ones, in stretches; a stretch may be empty."""
        for gap in self.dropped:
            yield range(place, gap.start)
            place = max(place, gap.stop)
        yield range(place, self.size)


def compile_epoch(num_samples: int, seed: int, segments: tuple[Segment, ...], epoch: int) -> EpochOrder:
    """Work out the order of one epoch; costs O(segments) and looks at no sample."""
    epoch_start = epoch * num_samples
    base_number, acting = _acting(segments, epoch_start, epoch_start + num_samples)
    layers: list[Layer] = []
    dropped: list[range] = []
    held_from = num_samples
    for segment in acting:
        start = max(0, segment.start - epoch_start)
        if start >= held_from:
            continue
        window = _clip(segment.window, epoch_start, start, held_from)
        held_end, held_from = held_from, held_from - len(window)
        layers.append(
            Layer(
                start=start,
                window=window,
                held_start=held_from,
                held_end=held_end,
                shuffle=Permutation(held_from - start, (seed, epoch, segment.number)),
            )
        )
        if window and segment.window and segment.window.drop:
            dropped.insert(0, range(held_from, held_end))
    return EpochOrder(
        size=num_samples,
        base=Permutation(num_samples, (seed, epoch, base_number)),
        layers=tuple(layers),
        dropped=tuple(dropped),
    )


def _acting(segments: tuple[Segment, ...], epoch_start: int, epoch_end: int) -> tuple[int, list[Segment]]:
    """Return the number that keys the base order of an epoch, and the segments that change it from there.

    A segment from before the epoch shuffles the whole of it. While no sample is held, one shuffle is as good as
    many, so the last such segment keys the base, and an epoch's cost doesn't grow with the incidents before it.
    From the first segment on whose window reaches into the epoch it matters which sample is where: all act.
    """
    base_number = 0
    acting: list[Segment] = []
    for segment in segments:
        if segment.start >= epoch_end:
            continue
        window = segment.window
        holds = window is not None and window.start < epoch_end and window.end > epoch_start
        if segment.start < epoch_start and not holds and not acting:
            base_number = segment.number
        else:
            acting.append(segment)
    return base_number, acting


def _clip(window: Window | None, epoch_start: int, start: int, end: int) -> range:
    """Return the places of a window that lie in the places from `start` to `end`."""
    if window is None:
        return range(end, end)
    first = min(max(window.start - epoch_start, start), end)
    return range(first, max(first, min(window.end - epoch_start, end)))
