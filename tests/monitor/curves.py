"""Loss curves made up for these tests, and the monitor at work on them.

Every shape takes a number of steps and a generator of random numbers, and is what a healthy run looks like.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any

from hpc_resume.monitor import Monitor, MonitorSettings, Observation, Verdict

BATCH = 8
"""Samples in each step of these curves."""

Curve = list[float]
Shape = Callable[[int, Random], Curve]


def observed(index: int, loss: float, every: int = 1, **fields: Any) -> Observation:
    """The value at `index` of a log of every so many steps; the first one is that of step `every`."""
    step = (index + 1) * every
    return Observation(step=step, start_position=(step - 1) * BATCH, position=step * BATCH, loss=loss, **fields)


def said(
    monitor: Monitor, losses: Iterable[float], *, every: int = 1, first: int = 0, norms: Sequence[float] | None = None
) -> list[Verdict | None]:
    """The monitor's answer to each value."""
    return [
        monitor.observe(observed(first + index, loss, every, grad_norm=None if norms is None else norms[index]))
        for index, loss in enumerate(losses)
    ]


def watched(losses: Iterable[float], monitor: Monitor | None = None, **log: Any) -> list[Verdict]:
    """What the monitor, a fresh one if none is given, says about the curve."""
    answers = said(monitor or Monitor(MonitorSettings()), losses, **log)
    return [verdict for verdict in answers if verdict is not None]


def outline(verdicts: Iterable[Verdict]) -> list[tuple[str, str, int, int]]:
    """Kind, detector, onset and step of each verdict."""
    return [(verdict.kind, verdict.detector, verdict.onset_step, verdict.step) for verdict in verdicts]


def level(steps: int, loss: float = 2.5, noise: float = 0.02, seed: int = 0) -> Curve:
    """Noise about a loss that never fell."""
    rng = Random(seed)
    return [loss + rng.gauss(0.0, noise) for _ in range(steps)]


def fallen(steps: int, loss: float = 2.5, noise: float = 0.02, seed: int = 0) -> Curve:
    """Noise about a loss that falls from four times its last level; after 600 steps it is there."""
    rng = Random(seed)
    return [loss * (1.0 + 3.0 * math.exp(-index / 100)) + rng.gauss(0.0, noise) for index in range(steps)]


def raised(losses: Curve, at: int, share: float, over: int = 1, until: int | None = None) -> Curve:
    """The curve with a rise by a share of 2.5 that begins at an index, takes so many steps, and stays, or ends."""
    until = len(losses) if until is None else until
    return [
        loss + (2.5 * share * min(1.0, (index - at + 1) / over) if at <= index < until else 0.0)
        for index, loss in enumerate(losses)
    ]


def logged(shape: Shape, values: int, every: int, seed: int) -> Curve:
    """So many values of a log of every so many steps; each is the mean of those steps, as Trainers log it."""
    losses = shape(values * every, Random(seed))
    return [sum(losses[first : first + every]) / every for first in range(0, len(losses), every)]


def decay(steps: int, high: float = 10.8, low: float = 3.3) -> Curve:
    """A pretraining loss without noise: it falls fast, then slowly, then more slowly still."""
    slow = steps / 15
    return [
        low
        + (high - low)
        * (0.6 * math.exp(-t / (slow / 6 + 1)) + 0.25 * math.exp(-t / slow) + 0.15 * math.exp(-t / (5 * slow)))
        for t in range(steps)
    ]


def pretraining(steps: int, rng: Random) -> Curve:
    """Normal noise."""
    return [loss + rng.gauss(0.0, 0.05) for loss in decay(steps)]


def heavy_tailed(steps: int, rng: Random) -> Curve:
    """Noise that is skewed upward, with a long tail."""
    return [loss + 0.05 * (rng.lognormvariate(0.0, 1.0) - 1.6) for loss in decay(steps)]


def hard_batches(steps: int, rng: Random) -> Curve:
    """One step of a hundred has a far higher loss."""
    return [loss + (rng.uniform(0.3, 2.5) if rng.random() < 0.01 else 0.0) for loss in pretraining(steps, rng)]


def hard_stretches(steps: int, rng: Random) -> Curve:
    """Now and then two steps in a row have a far higher loss."""
    losses = pretraining(steps, rng)
    at = 0
    while (at := at + 2 + int(rng.expovariate(0.003))) < steps - 1:
        losses[at] += rng.uniform(0.5, 2.0)
        losses[at + 1] += rng.uniform(0.2, 1.0)
    return losses


def smoothed(steps: int, rng: Random) -> Curve:
    """A log of an exponential moving average, corrected for its start."""
    average, losses = 0.0, []
    for index, loss in enumerate(pretraining(steps, rng)):
        average = 0.9 * average + 0.1 * loss
        losses.append(average / (1.0 - 0.9 ** (index + 1)))
    return losses


def periodic(steps: int, rng: Random) -> Curve:
    """Data of which every so many steps are the same."""
    period = rng.randint(7, 200)
    return [
        loss * (1.0 + 0.03 * math.sin(2.0 * math.pi * index / period)) + rng.gauss(0.0, 0.03)
        for index, loss in enumerate(decay(steps))
    ]


def red_noise(steps: int, rng: Random) -> Curve:
    """Noise in which each value keeps much of the one before."""
    wave, losses = 0.0, []
    for loss in decay(steps):
        wave = 0.9 * wave + rng.gauss(0.0, 0.022)
        losses.append(loss + wave)
    return losses


def noisier(steps: int, rng: Random) -> Curve:
    """Noise that becomes three times as large."""
    return [loss + rng.gauss(0.0, 0.05) * (1.0 + 2.0 * index / steps) for index, loss in enumerate(decay(steps))]


def small_batches(steps: int, rng: Random) -> Curve:
    """Noise nearly as large as what is to be learned."""
    return [abs(loss + rng.gauss(0.0, 0.5)) for loss in decay(steps, 3.0, 1.2)]


def epochs(steps: int, rng: Random) -> Curve:
    """Fine-tuning over four epochs: the loss drops at each boundary, and rises a little within each epoch."""
    losses = []
    for index in range(steps):
        epoch, within = divmod(4.0 * index / steps, 1.0)
        at = (1.1, 0.75, 0.45, 0.25)[int(epoch)]
        losses.append(at * (1.0 + 0.05 * within * (epoch > 0) + rng.gauss(0.0, 0.02)))
    return losses


def memorised(steps: int, rng: Random) -> Curve:
    """Fine-tuning that nearly reaches zero."""
    return [abs(0.1 + 0.9 * math.exp(-8.0 * index / steps) + rng.gauss(0.0, 0.03)) for index in range(steps)]


def preference(steps: int, rng: Random) -> Curve:
    """DPO from log 2 to zero, with noise in proportion."""
    return [abs(0.69 * math.exp(-3.0 * index / steps) * (1.0 + rng.gauss(0.0, 0.3))) for index in range(steps)]


def preference_noisy(steps: int, rng: Random) -> Curve:
    """DPO with small batches that hardly learns."""
    return [0.693 - 0.4 * index / steps + rng.gauss(0.0, 0.1) for index in range(steps)]


def negative(steps: int, rng: Random) -> Curve:
    """A log-likelihood that only has another sign."""
    return [loss - 14.0 + rng.gauss(0.0, 0.1) for loss in decay(steps, 5.0, -1.0)]


def divergence_from_reference(steps: int, rng: Random) -> Curve:
    """GRPO: what is logged is a KL that grows from zero, with an outlier in a hundred."""
    losses = []
    for index in range(steps):
        grown = 0.005 / (1.0 + math.exp(5.0 - 20.0 * index / steps)) * rng.lognormvariate(0.0, 0.5)
        losses.append(grown + 1e-9 + (rng.expovariate(20.0) if rng.random() < 0.01 else 0.0))
    return losses


def policy_gradient(steps: int, rng: Random) -> Curve:
    """A loss that is about zero by construction, with a few outliers on both sides."""
    return [rng.gauss(0.0, 0.05) * (1 + (rng.random() < 0.02) * 5) for _ in range(steps)]


def warm_up(steps: int, rng: Random) -> Curve:
    """A bump while the learning rate grows."""
    return [loss + 1.5 * math.exp(-(((index - 6) / 3) ** 2)) for index, loss in enumerate(pretraining(steps, rng))]


def mixture(steps: int, rng: Random) -> Curve:
    """Waves as long as a third of the run, because the mixture of the data changes."""
    return [loss + 0.06 * math.sin(6.0 * math.pi * index / steps) for index, loss in enumerate(pretraining(steps, rng))]
