"""How long it takes to go on at a position far into the data, against skipping the batches before it.

    python benchmarks/data_position.py [--json]

The first table is ours: from a changed order (up to 100 incidents, all in the epoch that is resumed) to the first micro
batch of one rank of 64, as `Session.resume` and `Session.batches` get there. "Worst" is the slowest of many random
positions, each the median of several tries. Each incident in the epoch costs one more permutation per sample, so the
cost is (samples looked up) x (incidents + 1), wherever the position is.

The second table is accelerate's `skip_first_batches` on a DataLoader whose samples cost next to nothing. It walks the
sampler over a data set with an index, and loads and throws away the batches of a stream.

Nothing here waits for a disk or another thread, so CPU time is what it takes on a core of its own; wall time is shown
beside it, and is longer where others use the machine.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

from accelerate import Accelerator, skip_first_batches
from torch.utils.data import DataLoader, Dataset, IterableDataset

from hpc_resume.data_order import DataOrder, Segment, Window, rank_share

BAR_MS = 10.0
POSITION = 10**9
WORLD_SIZE = 64
SKIPPED = 10**5


@dataclass(frozen=True, kw_only=True)
class Ours:
    """One row of the first table."""

    num_samples: int
    segments: int
    micro_batch: int
    wall_ms: float
    cpu_ms: float
    worst_cpu_ms: float


@dataclass(frozen=True, kw_only=True)
class Skipping:
    """One row of the second table."""

    what: str
    batches: int
    batch_size: int
    wall_ms: float
    cpu_ms: float


def incidents(count: int, num_samples: int, position: int) -> tuple[Segment, ...]:
    """Return segments of the epoch of `position`, with windows, that all change what comes at `position`."""
    epoch_start = position - position % num_samples
    gap = max(1, (position - epoch_start) // (count + 1))
    return tuple(
        Segment(start, number, Window(start + 1, start + 2 + min(gap, 100)))
        for number, start in enumerate(range(epoch_start, epoch_start + count * gap, gap), 1)
    )


def first_micro_batch(order: DataOrder, position: int, micro_batch: int) -> list[int]:
    """Do what a session does between a load and its first batch."""
    order.take(position, 8)  # goes into the journal
    positions, _ = order.positions(position, WORLD_SIZE * micro_batch)
    share = rank_share(positions, WORLD_SIZE - 1, WORLD_SIZE, micro_batch)[0]
    return [order.sample_at(place) for place in share]


def measure(work: Callable[[int], object], tries: int) -> tuple[float, float]:
    """Return the medians of wall and CPU time in ms; `work` is told the number of the try."""
    wall, cpu = [], []
    for number in range(tries):
        began = time.perf_counter(), time.process_time()
        work(number)
        wall.append((time.perf_counter() - began[0]) * 1e3)
        cpu.append((time.process_time() - began[1]) * 1e3)
    return statistics.median(wall), statistics.median(cpu)


def measure_ours(num_samples: int, count: int, micro_batch: int, positions: int, tries: int) -> Ours:
    """Measure at `POSITION`, and at random positions up to a thousand times as far, after so many incidents."""

    def at(position: int) -> tuple[float, float]:
        segments = incidents(count, num_samples, position)
        # Each try has a seed of its own, so that nothing is known from the one before.
        return measure(
            lambda seed: first_micro_batch(DataOrder(num_samples, seed, segments), position, micro_batch), tries
        )

    # Nothing happened before the first sample of an epoch, so take one amid it.
    wall_ms, cpu_ms = at(POSITION if POSITION % num_samples else POSITION + num_samples // 2)
    draw = random.Random(0)
    worst_cpu_ms = max(at(draw.randrange(1000 * POSITION))[1] for _ in range(positions))
    return Ours(
        num_samples=num_samples,
        segments=count,
        micro_batch=micro_batch,
        wall_ms=wall_ms,
        cpu_ms=cpu_ms,
        worst_cpu_ms=worst_cpu_ms,
    )


class Numbers(Dataset[int]):
    """A data set whose samples cost nothing."""

    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset[int]):
    """The same without an index."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(10**6))


def measure_skipping(what: str, batches: int, batch_size: int, tries: int) -> Skipping:
    """Measure from the call of `skip_first_batches` to the first batch after the skipped ones."""
    accelerator = Accelerator(cpu=True)
    data = Stream() if what == "stream" else Numbers()
    loader = accelerator.prepare(DataLoader(data, batch_size=batch_size, shuffle=what != "stream"))

    def resume(number: int) -> None:
        if what != "stream":
            loader.set_epoch(number)
        next(iter(skip_first_batches(loader, batches)))

    wall_ms, cpu_ms = measure(resume, tries)
    return Skipping(what=what, batches=batches, batch_size=batch_size, wall_ms=wall_ms, cpu_ms=cpu_ms)


def print_tables(ours: list[Ours], skipping: list[Skipping]) -> None:
    """Print both for people, with how many times longer the skipping takes."""
    out = sys.stdout.write
    out(f"{'samples':>8} {'incidents':>9} {'micro batch':>11} {'wall':>10} {'CPU':>10} {'worst CPU':>10}\n")
    for ours_row in ours:
        beyond = "" if ours_row.worst_cpu_ms < BAR_MS else f"  over {BAR_MS:g} ms"
        out(
            f"{ours_row.num_samples:>8.0e} {ours_row.segments:>9} {ours_row.micro_batch:>11} "
            f"{ours_row.wall_ms:>7.3f} ms {ours_row.cpu_ms:>7.3f} ms {ours_row.worst_cpu_ms:>7.3f} ms{beyond}\n"
        )
    base_ms = max(row.worst_cpu_ms for row in ours if row.segments <= 10 and row.micro_batch == 8)
    out(
        f"\nskip_first_batches, and its CPU time against {base_ms:.3f} ms: our worst with 10 incidents, micro batch 8\n"
    )
    for row in skipping:
        out(
            f"{row.what:>13}, {row.batches} batches of {row.batch_size} "
            f"{row.wall_ms:>10.1f} ms {row.cpu_ms:>10.1f} ms {row.cpu_ms / base_ms:>8.0f} x\n"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--tries", type=int, default=7, help="how often each thing is measured; the median counts")
    parser.add_argument("--positions", type=int, default=50, help="random positions for the worst case")
    options = parser.parse_args()
    ours = [
        measure_ours(num_samples, segments, micro_batch, options.positions, options.tries)
        for num_samples in (10**6, 10**9)
        for segments, micro_batch in ((0, 8), (10, 8), (100, 8), (10, 64), (100, 64))
    ]
    skipping = [
        measure_skipping(what, batches, batch_size, options.tries)
        for what in ("with an index", "stream")
        for batches, batch_size in ((SKIPPED, 8), (SKIPPED, 1))
    ]
    if options.json:
        rows = {"ours": [asdict(row) for row in ours], "skip_first_batches": [asdict(row) for row in skipping]}
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
    else:
        print_tables(ours, skipping)


if __name__ == "__main__":
    main()
