from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpc_resume.cluster.local_shares import share_gpus, threads_per_rank, visible_gpus
from hpc_resume.errors import ConfigError


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        pytest.param("0,2", ["0", "2"], id="numbers"),
        pytest.param("GPU-a, MIG-b", ["GPU-a", "MIG-b"], id="names"),
        pytest.param("", [], id="none"),
        pytest.param("-1", [], id="none, said otherwise"),
        pytest.param("3,-1,4", ["3"], id="what follows on none is hidden"),
        pytest.param(None, ["0", "1"], id="all that the driver knows"),
    ],
)
def test_which_gpus_are_seen(tmp_path: Path, setting: str | None, expected: list[str]) -> None:
    for name in ("0000:1b:00.0", "0000:43:00.0"):
        (tmp_path / name).mkdir()
    environment = {} if setting is None else {"CUDA_VISIBLE_DEVICES": setting}
    assert visible_gpus(environment, tmp_path) == expected


def test_without_a_driver_there_are_no_gpus(tmp_path: Path) -> None:
    assert visible_gpus({}, tmp_path / "gpus") == []


def test_no_gpu_is_in_two_places() -> None:
    assert share_gpus(["4", "5", "6", "7", "9"], ranks=2, places=2) == ["4,5", "6,7"]
    assert share_gpus([], ranks=2, places=2) == []


def test_too_few_gpus_are_an_error_that_says_how_many_are_needed() -> None:
    with pytest.raises(ConfigError, match=r"has 3 GPU\(s\).* need 4; lower cluster.parallelism or ") as caught:
        share_gpus(["0", "1", "2"], ranks=2, places=2)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("ranks", "places", "expected"), [(1, 1, 12), (2, 1, 6), (2, 3, 2), (5, 2, 1), (8, 4, 1)])
def test_ranks_of_all_runs_together_take_no_more_threads_than_there_are_cores(
    monkeypatch: pytest.MonkeyPatch, ranks: int, places: int, expected: int
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    assert threads_per_rank(ranks, places) == expected
