"""The benchmarks run; what they measure is for people to judge."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.training import environment

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"

pytestmark = pytest.mark.slow


def measured(script: str, *options: str) -> Any:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / script), "--json", *options],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.deepspeed
def test_saves_and_loads_are_measured(tmp_path: Path) -> None:
    found = measured("checkpoint.py", "--parameters-m", "1", "--rounds", "1", "--folder", str(tmp_path))
    assert found["parameters"] > 1e6
    assert set(found["saves"]) == {"bare", "sync", "async", "staged"}
    assert all(ratio > 0 for ratio in found["ratios"].values())
    assert list(tmp_path.iterdir()) == []


def test_going_on_at_a_position_is_measured() -> None:
    assert measured("data_position.py", "--tries", "1", "--positions", "2")
