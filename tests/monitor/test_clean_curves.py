from __future__ import annotations

import math
from random import Random

import pytest
from monitor.curves import (
    divergence_from_reference,
    epochs,
    hard_batches,
    hard_stretches,
    heavy_tailed,
    logged,
    memorised,
    mixture,
    negative,
    noisier,
    outline,
    periodic,
    policy_gradient,
    preference,
    preference_noisy,
    pretraining,
    red_noise,
    small_batches,
    smoothed,
    warm_up,
    watched,
)

SHAPES = (pretraining, heavy_tailed, hard_batches, hard_stretches, smoothed, periodic, red_noise, noisier, warm_up)
SHAPES += (mixture, small_batches, epochs, memorised, preference, preference_noisy, negative, policy_gradient)


def verdicts_by_seed(shape, values, every, seeds):
    spoken = {seed: outline(watched(logged(shape, values, every, seed), every=every)) for seed in range(seeds)}
    return {seed: verdicts for seed, verdicts in spoken.items() if verdicts}


@pytest.mark.parametrize(
    ("values", "every", "seeds"),
    [(60, 1, 8), (300, 1, 6), (1000, 1, 3), (3000, 1, 2), (60, 10, 6), (300, 10, 3), (60, 100, 1)],
    ids=str,
)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_healthy_curves_have_no_verdict(shape, values, every, seeds):
    assert verdicts_by_seed(shape, values, every, seeds) == {}


@pytest.mark.parametrize(("values", "seeds"), [(300, 8), (1000, 4), (3000, 3)])
def test_divergences_from_the_reference_that_grow_from_zero_have_no_verdict(values, seeds):
    assert verdicts_by_seed(divergence_from_reference, values, 1, seeds) == {}


STEPS, AT = 2500, 1700
"""The curves fall sick at this index, where each is calm enough that a person would see it."""

BASES = (pretraining, heavy_tailed, hard_batches, hard_stretches, smoothed, periodic, mixture, epochs, negative)


def sickened(shape, seed, change):
    """The curve with `change(steps since it fell sick, loss, its size)` applied from then on."""
    losses = shape(STEPS, Random(seed))
    size = sum(map(abs, losses[AT - 50 : AT])) / 50
    return losses[:AT] + [change(index, loss, size) for index, loss in enumerate(losses[AT:])]


def spiked(steps):
    return lambda index, loss, size: loss + (0.6 * size if index < steps else 0.0)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("shape", BASES, ids=lambda shape: shape.__name__)
@pytest.mark.parametrize(
    ("change", "kind", "detectors", "early", "delay"),
    [
        pytest.param(spiked(6), "near_miss", {"spike"}, 2, 14, id="a spike that recovers"),
        pytest.param(spiked(STEPS), "incident", {"spike"}, 2, 10, id="a spike that does not"),
        pytest.param(lambda *_: math.nan, "incident", {"non_finite"}, 0, 1, id="NaN"),
        pytest.param(lambda *_: 0.0, "incident", {"overflow"}, 0, 10, id="stuck at zero"),
        pytest.param(
            lambda index, loss, size: loss + size * min(0.5, 0.5 * index / 500),
            "incident",
            {"divergence", "plateau"},
            0,
            320,
            id="a slow divergence",
        ),
        pytest.param(
            lambda _, loss, size: loss + 0.15 * size, "incident", {"spike", "plateau"}, 8, 80, id="a higher plateau"
        ),
    ],
)
def test_a_sick_curve_is_found(shape, change, kind, detectors, early, delay, seed):
    first = watched(sickened(shape, seed, change))[0]
    assert first.kind == kind
    assert first.detector in detectors
    assert AT + 1 - early <= first.onset_step <= first.step <= AT + delay


@pytest.mark.parametrize("shape", [pretraining, smoothed, epochs, negative], ids=lambda shape: shape.__name__)
@pytest.mark.parametrize("every", [10, 100])
def test_in_a_log_of_every_so_many_steps_a_spike_is_found_with_its_second_value_at_the_latest(shape, every):
    losses = logged(shape, 100, every, 0)
    size = sum(map(abs, losses[40:60])) / 20
    [first, *_] = watched(losses[:60] + [loss + 0.6 * size for loss in losses[60:]], every=every)
    assert (first.kind, first.detector, first.onset_step) == ("incident", "spike", 61 * every)
    assert first.step <= 62 * every
