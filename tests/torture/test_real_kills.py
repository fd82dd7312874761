"""Real DeepSpeed runs on two ranks, killed at seeded random instants, end as if nothing had happened to them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from torture.marks import NOTHING

pytestmark = pytest.mark.deepspeed

Report = Callable[[list[int]], None]


def torture_real_runs(
    torture: Callable[..., str], folder: Path, kinds: list[str], *, kills: int, seed: int
) -> list[int]:
    """Kill a run of each kind so often; return where in a save each kill hit."""
    answer = torture("kill_real_runs", folder, "--runs", *kinds, "--kills", kills, "--seed", seed, limit_s=1500.0)
    hits: list[int] = json.loads(answer)
    assert len(hits) == kills * len(kinds)
    assert len(hits) - hits.count(NOTHING) >= len(hits) // 4
    return hits


@pytest.mark.slow
def test_killed_real_runs_end_as_the_undisturbed_ones(
    tmp_path: Path, torture: Callable[..., str], report: Report
) -> None:
    report(torture_real_runs(torture, tmp_path, ["1/async/fp32", "3/sync/bf16"], kills=5, seed=1))


@pytest.mark.full
@pytest.mark.parametrize("kind", ["0/async/bf16", "1/sync/fp32", "2/async/fp32", "3/async/bf16"])
def test_killed_real_runs_end_as_the_undisturbed_ones_in_more_settings(
    tmp_path: Path, torture: Callable[..., str], report: Report, kind: str
) -> None:
    report(torture_real_runs(torture, tmp_path, [kind], kills=10, seed=2))
