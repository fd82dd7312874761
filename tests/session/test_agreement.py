"""What two real ranks agree on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.training import environment

HEALTHY = {"loss_scale": None, "skipped": False, "stop": False, "written": True}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the ranks were told: the same on both of them."""
    folder = tmp_path_factory.mktemp("agreement")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=0"]
    done = subprocess.run(
        [sys.executable, *launcher, str(Path(__file__).with_name("agreement_ranks.py")), str(folder)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((folder / f"told-{rank}.json").read_text()) for rank in (0, 1))
    assert first == second
    return dict(first)


def test_the_loss_is_the_mean_and_the_norm_is_rank_0s(told: dict[str, Any]) -> None:
    assert told["mean"] == {**HEALTHY, "loss": 1.5, "grad_norm": 0.5}
    assert told["plain"] == {**HEALTHY, "loss": 1.5, "grad_norm": None}


def test_loss_and_norm_may_be_tensors(told: dict[str, Any]) -> None:
    assert told["norm as tensor"] == {**HEALTHY, "loss": 2.0, "grad_norm": 0.25}


def test_a_plain_number_loses_no_bits(told: dict[str, Any]) -> None:
    assert told["many bits"]["loss"] == 1.1


@pytest.mark.parametrize("kind", ["number", "tensor"])
def test_the_loss_scale_is_rank_0s(told: dict[str, Any], kind: str) -> None:
    assert told[f"loss scale as {kind}"] == {**HEALTHY, "loss": 1.0, "grad_norm": None, "loss_scale": 4096.0}


def test_a_loss_scale_of_0_is_one(told: dict[str, Any]) -> None:
    assert told["loss scale of 0"]["loss_scale"] == 0.0


def test_one_rank_that_was_asked_to_stop_is_enough(told: dict[str, Any]) -> None:
    assert told["stop on one"]["stop"] is True
    assert told["mean"]["stop"] is False


def test_rank_0_says_whether_the_step_was_skipped(told: dict[str, Any]) -> None:
    assert told["skipped"] == {**HEALTHY, "loss": 1.0, "grad_norm": float("inf"), "skipped": True}
    assert told["skipped on rank 1 only"]["skipped"] is False


def test_a_checkpoint_is_written_only_when_all_ranks_say_so(told: dict[str, Any]) -> None:
    assert told["mean"]["written"] is True
    assert told["written on one"]["written"] is False


def test_a_nan_on_one_rank_is_a_nan_for_all(told: dict[str, Any]) -> None:
    assert told["nan on one"] == "nan"


def test_a_reduction_is_read_late_without_mixing_with_others(told: dict[str, Any]) -> None:
    assert told["in order"] == [1.5, "from 0", 10.5]


def test_words_have_the_time_limit_that_was_asked_for(told: dict[str, Any]) -> None:
    assert told["timeout_s"] == 77.0
