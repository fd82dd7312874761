"""Which sample comes at which position of the whole training, and which rank takes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from hpc_resume.data_order.epoch import EpochOrder, compile_epoch
from hpc_resume.data_order.segment import Segment


@dataclass(frozen=True, slots=True)
class DataOrder:
    """The stream of samples that a run trains on, from position 0 on, without end.

    A position is the number of samples consumed before it, over all ranks and epochs; dropped samples count
    as consumed. Epoch e is the positions from e * num_samples on, and has each sample exactly once.
    """

    num_samples: int
    """Samples in the data set."""

    seed: int
    """Chooses the order; the orders of two seeds have nothing to do with each other, in any epoch."""

    segments: tuple[Segment, ...] = ()
    """What incidents did to the order, in the order in which they happened; their starts may go down."""

    def __post_init__(self) -> None:
        """Refuse what can't mean anything."""
        if self.num_samples < 1:
            raise ValueError(f"the data set has {self.num_samples} samples; it must have 1 or more")
        for before, after in pairwise(self.segments):
            if after.number <= before.number:
                raise ValueError(
                    f"segment {after.number} follows segment {before.number}; numbers are never used again and go up"
                )
        windows = (segment.window for segment in self.segments)
        # What is less than an epoch in all can't be all of one; only else each epoch must be looked at.
        if sum(window.end - window.start for window in windows if window and window.drop) >= self.num_samples:
            for segment in self.segments:
                self._refuse_to_drop_an_epoch(segment)

    def _refuse_to_drop_an_epoch(self, segment: Segment) -> None:
        """Make sure that each epoch keeps a sample; else `take` could look for the next one for ever."""
        window = segment.window
        if window is None or not window.drop:
            return
        touched = (window.start // self.num_samples, (window.end - 1) // self.num_samples)
        if window.end - window.start >= self.num_samples or any(
            sum(map(len, self.dropped_places(epoch))) == self.num_samples for epoch in touched
        ):
            raise ValueError(
                f"segment {segment.number} drops [{window.start}, {window.end}), which could leave nothing of an "
                f"epoch of {self.num_samples} samples; hold the window instead, or make it shorter"
            )

    def sample_at(self, position: int) -> int:
        """Return the sample at `position`, whether it is dropped or not."""
        epoch, place = self._split(position)
        return _epoch_order(self, epoch).sample(place)

    def is_dropped(self, position: int) -> bool:
        """Say whether the sample at `position` is left out."""
        epoch, place = self._split(position)
        return _epoch_order(self, epoch).is_dropped(place)

    def dropped_places(self, epoch: int) -> tuple[range, ...]:
        """Return which positions of an epoch, counted from its start, are left out, so that they can be named."""
        return _epoch_order(self, epoch).dropped

    def take(self, position: int, count: int) -> tuple[list[int], int]:
        """Return the next `count` samples from `position` on, less dropped ones, and the position after them.

        That position is the one after the last sample taken, even if only dropped ones follow in its epoch. So
        taking twice is the same as taking once as much.
        """
        samples: list[int] = []
        for epoch, places in self._kept_places(position, count):
            order = _epoch_order(self, epoch)
            samples += map(order.sample, places)
            position = epoch * self.num_samples + places.stop
        return samples, position

    def positions(self, position: int, count: int) -> tuple[list[int], int]:
        """Return where the next `count` samples lie, and the position after them, as `take` does.

        It looks at no sample, so that each rank has to look only at its own, with `sample_at`.
        """
        found: list[int] = []
        for epoch, places in self._kept_places(position, count):
            start = epoch * self.num_samples
            position = start + places.stop
            found += range(start + places.start, position)
        return found, position

    def advance(self, position: int, count: int) -> int:
        """Return the position after the next `count` samples, as `take` does, without looking at any."""
        for epoch, places in self._kept_places(position, count):
            position = epoch * self.num_samples + places.stop
        return position

    def _kept_places(self, position: int, count: int) -> Iterator[tuple[int, range]]:
        """Yield epochs, and stretches of places in them, with the next `count` samples that are not dropped."""
        if count < 0:
            raise ValueError(f"{count} samples were asked for; it must be 0 or more")
        epoch, first = self._split(position)
        while count > 0:
            for places in _epoch_order(self, epoch).kept_places(first):
                wanted = places[:count]
                count -= len(wanted)
                if wanted:
                    yield epoch, wanted
            epoch, first = epoch + 1, 0

    def _split(self, position: int) -> tuple[int, int]:
        if position < 0:
            raise ValueError(f"position is {position}; it must be 0 or more")
        return divmod(position, self.num_samples)


@lru_cache(maxsize=4)
def _epoch_order(order: DataOrder, epoch: int) -> EpochOrder:
    """Keep what was worked out for the last few epochs: a stream of samples asks for the same one or two."""
    return compile_epoch(order.num_samples, order.seed, order.segments, epoch)


def rank_share(samples: list[int], rank: int, world_size: int, micro_batch: int) -> list[list[int]]:
    """Return a rank's micro batches of one optimizer step; `samples` may as well be their positions.

    The step's samples are laid out as (micro step, rank, sample). So a step trains on the same samples, however
    many ranks share them.
    """
    if world_size < 1 or micro_batch < 1 or not 0 <= rank < world_size:
        raise ValueError(
            f"rank {rank} of {world_size} with micro batches of {micro_batch} can't be: there must be 1 or more "
            "of both, and ranks count from 0"
        )
    stride = world_size * micro_batch
    if len(samples) % stride:
        raise ValueError(
            f"{len(samples)} samples can't be shared by {world_size} ranks in micro batches of {micro_batch}: "
            f"that takes a multiple of {stride}"
        )
    first = rank * micro_batch
    return [samples[at : at + micro_batch] for at in range(first, len(samples), stride)]
