"""What DeepSpeed's engines multiply the loss by, where they look for that number themselves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.training import environment

pytestmark = pytest.mark.deepspeed

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[Any]]]:
    path = tmp_path_factory.mktemp("fp16") / "seen.json"
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1", "--max-restarts=0"]
    done = subprocess.run(
        [sys.executable, *launcher, str(Path(__file__).with_name("fp16_rank.py")), str(path)],
        env={**environment(), "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[list[Any]]] = json.loads(path.read_text())
    return found


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_dynamic_loss_scale_is_halved_with_each_step_that_overflows(
    seen: dict[str, list[list[Any]]], stage: int
) -> None:
    assert seen[f"dynamic, stage {stage}"] == [[256.0, False], [128.0, True], [64.0, True], [64.0, False]]


@pytest.mark.parametrize("how", ["fixed", "bf16", "fp32"])
def test_elsewhere_there_is_none(seen: dict[str, list[list[Any]]], how: str) -> None:
    assert [scale for scale, _ in seen[how]] == [None] * 4
