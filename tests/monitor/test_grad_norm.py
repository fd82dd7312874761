from __future__ import annotations

import json
import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_resume.monitor.grad_norm import ACCEPTED, KNOWN, WINDOW, GradNormWitness


def witnessed(norms, witness=None):
    witness = witness or GradNormWitness()
    return [witness.observe(norm) for norm in norms]


def usual(count=40, seed=0):
    rng = Random(seed)
    return [rng.gauss(1.0, 0.05) for _ in range(count)]


@pytest.mark.parametrize(
    ("norm", "expected"),
    [
        pytest.param(1.2, False, id="within six deviations"),
        pytest.param(1.9, False, id="far out, but less than twice the usual"),
        pytest.param(2.2, True, id="far out, and more than twice the usual"),
        pytest.param(1e308, True, id="huge"),
        pytest.param(0.0, False, id="small"),
        pytest.param(None, False, id="none"),
        pytest.param(math.nan, False, id="NaN, which is not its business"),
        pytest.param(math.inf, False, id="infinite, which is not its business"),
    ],
)
def test_a_norm_far_above_those_before_it_is_anomalous(norm, expected):
    assert witnessed([*usual(), norm])[-1] is expected


def test_twice_the_usual_is_within_six_deviations_of_noisy_norms():
    rng = Random(0)
    noisy = [rng.lognormvariate(0.0, 0.5) for _ in range(WINDOW)]
    assert witnessed([*noisy, 2.5])[-1] is False
    assert witnessed([*noisy, 25.0])[-1] is True


def test_nothing_is_said_before_enough_norms_are_known():
    assert witnessed([1.0] * (KNOWN - 1) + [9.0])[-1] is False
    assert witnessed([1.0] * KNOWN + [9.0])[-1] is True


def test_what_is_missing_or_not_finite_leaves_its_memory_as_it_is():
    witness = GradNormWitness()
    witnessed(usual(), witness)
    before = witness.state_dict()
    assert not any(witnessed([None, math.nan, math.inf, -math.inf], witness))
    assert witness.state_dict() == before


def test_an_anomalous_norm_does_not_widen_its_own_bounds():
    assert witnessed(usual() + [3.0] * 30)[-30:] == [True] * 30


def test_norms_that_stay_large_are_usual_in_the_end():
    said = witnessed(usual(64) + [3.0] * (2 * ACCEPTED))
    assert said[64 : 64 + ACCEPTED] == [True] * (ACCEPTED - 1) + [False]
    assert not any(said[-ACCEPTED:])


@given(unit=st.integers(-30, 30), high=st.floats(0.0, 100.0))
def test_norms_in_another_unit_are_anomalous_alike(unit, high):
    norms = [*usual(), high]
    assert witnessed([2.0**unit * norm for norm in norms]) == witnessed(norms)


@given(norms=st.lists(st.one_of(st.none(), st.floats(), st.floats(0.5, 4.0)), max_size=100), cut=st.integers(0, 140))
def test_any_floats_are_taken_and_it_goes_on_from_its_saved_state(norms, cut):
    norms = usual() + norms
    witness, resumed = GradNormWitness(), GradNormWitness()
    witnessed(norms[:cut], witness)
    resumed.load_state_dict(json.loads(json.dumps(witness.state_dict(), allow_nan=False)))
    assert witnessed(norms[cut:], resumed) == witnessed(norms[cut:], witness)
    assert resumed.state_dict() == witness.state_dict()
    assert len(witness.state_dict()["norms"]) <= WINDOW
