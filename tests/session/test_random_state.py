from __future__ import annotations

import random

import numpy as np
import torch

from hpc_resume.session import random_state


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_a_restored_state_draws_the_same_numbers_from_all_generators() -> None:
    random_state.reseed("a test", 1)
    draw()
    state = random_state.capture()
    expected = [draw(), draw()]
    random_state.reseed("something else")
    random_state.restore(state)
    assert [draw(), draw()] == expected


def test_neighbouring_keys_have_nothing_to_do_with_each_other() -> None:
    seen = set()
    for key in [(0, 0), (0, 1), (1, 0), (1, 1)]:
        random_state.reseed("model", *key)
        seen.add(draw())
    assert len(seen) == 4


def test_the_same_key_gives_the_same_numbers() -> None:
    random_state.reseed("model", 3, 1)
    first = draw()
    random_state.reseed("model", 3, 1)
    assert draw() == first
