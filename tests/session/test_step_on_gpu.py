"""On a GPU a session's step leaves the host free, whatever is in the GPU's stream."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.training import launch_ranks

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and this machine has none")

STEPS = 10


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the rank saw."""
    folder = tmp_path_factory.mktemp("gpu")
    launch_ranks(Path(__file__).with_name("step_on_gpu.py"), folder, 1)
    found: dict[str, Any] = json.loads((folder / "seen.json").read_text())
    return found


def test_no_step_does_anything_that_torch_knows_to_wait_for_the_gpu(seen: dict[str, Any]) -> None:
    assert seen["a wait is an error"] is True
    assert seen["returned"] == [True] * STEPS


def test_a_step_comes_back_while_the_gpu_has_still_seconds_of_work(seen: dict[str, Any]) -> None:
    assert seen["still busy"] is True


def test_what_comes_from_the_gpu_is_right_and_one_step_late(seen: dict[str, Any]) -> None:
    assert seen["observed"] == [[step, 2.0 - step / 64, 0.5, 2.0**step] for step in range(1, STEPS)]
