"""Small processes, killed again and again around their saves: the newest committed checkpoint is always in force.

What happens to each of them is what happens to a real run: real supervisors, ranks, sessions and journals, and files
as DeepSpeed writes them. Only the model is missing, so that a start costs little.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from torture.marks import BEFORE_RECORD, BEFORE_RENAME, COPYING, WRITING

Report = Callable[[list[int]], None]
KILLS_A_RUN = 12


def torture_small_runs(
    torture: Callable[..., str], folder: Path, *, kills: int, seed: int, damage: float = 0.0
) -> list[int]:
    """Kill so often; return where in a save each kill hit."""
    runs = math.ceil(kills / KILLS_A_RUN)
    options = ("--kills", KILLS_A_RUN, "--seed", seed, "--damage", damage)
    answer = torture("kill_small_runs", folder, "--runs", 0, runs, *options)
    hits: list[int] = json.loads(answer)
    assert len(hits) >= kills
    # Kills that all miss would prove nothing.
    for where in (COPYING, WRITING, BEFORE_RENAME, BEFORE_RECORD):
        assert where in hits
    return hits


def test_no_kill_costs_a_committed_step(in_memory: Path, torture: Callable[..., str], report: Report) -> None:
    report(torture_small_runs(torture, in_memory, kills=120, seed=1))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3, 4])
def test_no_kill_costs_a_committed_step_with_more_seeds(
    in_memory: Path, torture: Callable[..., str], report: Report, seed: int
) -> None:
    report(torture_small_runs(torture, in_memory, kills=132, seed=seed))


@pytest.mark.slow
def test_no_kill_costs_a_committed_step_on_a_disk_that_takes_its_time(
    tmp_path: Path, torture: Callable[..., str], report: Report
) -> None:
    report(torture_small_runs(torture, tmp_path, kills=60, seed=5))


@pytest.mark.slow
def test_damage_that_is_found_between_kills_costs_what_is_damaged_and_no_more(
    in_memory: Path, torture: Callable[..., str], report: Report
) -> None:
    report(torture_small_runs(torture, in_memory, kills=96, seed=6, damage=0.5))
