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
CORPUS = BENCHMARKS.parents[1] / "shared" / "corpus"

pytestmark = pytest.mark.slow


def run(script: str, *options: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / script), "--json", *options],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def measured(script: str, *options: str) -> Any:
    return json.loads(run(script, *options).stdout)


@pytest.mark.deepspeed
def test_saves_and_loads_are_measured(tmp_path: Path) -> None:
    found = measured("checkpoint.py", "--parameters-m", "1", "--rounds", "1", "--folder", str(tmp_path))
    assert found["parameters"] > 1e6
    assert set(found["saves"]) == {"bare", "sync", "async", "staged"}
    assert all(ratio > 0 for ratio in found["ratios"].values())
    assert list(tmp_path.iterdir()) == []


def test_going_on_at_a_position_is_measured() -> None:
    assert measured("data_position.py", "--tries", "1", "--positions", "2")


@pytest.mark.deepspeed
def test_what_the_monitor_adds_to_a_step_is_measured() -> None:
    tiny = ("--points", "400", "--parameters-m", "1", "--rounds", "2", "--steps", "1")
    found = measured("monitor.py", "--skip-curves", *tiny)
    assert found["curves"] is None
    assert found["pure"]["last"] == 2000
    assert 0 < found["pure"]["p50_us"] <= found["pure"]["p99_us"]
    assert 0 < found["pure"]["state_bytes"] < 2**16
    assert found["session"]["parameters"] > 1e6
    assert set(found["session"]["paired"]) == {"with it", "item", "without again"}
    assert all(ratio > 0 for ratio in found["session"]["ratios"].values())


@pytest.mark.skipif(not (CORPUS / "score.py").is_file(), reason=f"no corpus of loss curves in {CORPUS}")
def test_the_monitor_is_scored_beside_other_detectors_on_short_curves() -> None:
    found = measured("monitor.py", "--skip-cost", "--max-points", "2000")["curves"]
    detectors = found["detectors"]
    assert len(detectors) == 6
    assert len({(each["events"], each["clean_curves"]) for each in detectors.values()}) == 1
    ours = detectors["hpc_resume"]
    by_detector = found["ours_by_detector"].values()
    assert ours["detected"] > 0
    assert sum(each.get(kind, 0) for each in by_detector for kind in ours["by_kind"]) == ours["detected"]
    assert sum(each.get("false", 0) for each in by_detector) == ours["false_alarms"]


def test_without_a_corpus_the_benchmark_of_the_monitor_says_so_and_goes_on(tmp_path: Path) -> None:
    done = run("monitor.py", "--skip-cost", "--corpus", str(tmp_path))
    assert json.loads(done.stdout) == {"curves": None, "pure": None, "session": None}
    assert done.stderr.splitlines() == [f"no corpus in {tmp_path}, so no curves are scored; --corpus says where one is"]
