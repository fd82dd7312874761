"""Slurm clusters for tests: `slurm` is shared and cleared after each test, `start_slurm` makes special ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from slurm.cluster import HOW_TO_GET_IT, NO_SLURM, MiniSlurm, missing_programs


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("slurm")


@pytest.fixture(scope="session")
def slurm_installed() -> None:
    """Skip where Slurm is missing; fail where whoever runs the tests has asked for it."""
    missing = missing_programs()
    if missing:
        reason = f"{NO_SLURM} ({', '.join(missing)} not found): {HOW_TO_GET_IT}"
        if os.environ.get("HPC_RESUME_TEST_APT"):
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.fixture(scope="session")
def slurm_session(slurm_installed: None) -> Iterator[MiniSlurm]:
    """One cluster with accounting for all tests; use `slurm`, which clears it after each."""
    cluster = MiniSlurm()
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture
def slurm(slurm_session: MiniSlurm) -> Iterator[MiniSlurm]:
    """The shared cluster: four idle nodes, an empty queue."""
    yield slurm_session
    slurm_session.settle()


@pytest.fixture
def start_slurm(slurm_installed: None) -> Iterator[Callable[..., MiniSlurm]]:
    """`start_slurm(accounting=..., settings=..., files=...)`: a cluster of this test alone; see MiniSlurm."""
    started: list[MiniSlurm] = []

    def start(**options: Any) -> MiniSlurm:
        started.append(MiniSlurm(**options))
        started[-1].start()
        return started[-1]

    yield start
    for cluster in started:
        cluster.stop()
