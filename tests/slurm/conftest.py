"""Slurm clusters for tests: `slurm` is shared and cleared after each test, `start_slurm` makes special ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from slurm.cluster import HOW_TO_GET_IT, NO_SLURM, MiniSlurm, missing_programs
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

TRAININGS = ("test_array.py", "test_elastic_training.py", "test_interruptions.py", "test_every_template_survives")
"""Parts of the names of real trainings, which need the CPUs; all other tests on Slurm mostly wait."""


class TrainingsOneByOne(LoadScopeScheduling):
    """Gives all real trainings to one worker of pytest-xdist, and every other test to whichever worker is free."""

    def _split_scope(self, nodeid: str) -> str:
        return "trainings" if any(part in nodeid for part in TRAININGS) else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> TrainingsOneByOne:
    """Each worker has a cluster of its own, so that any test can run on any of them."""
    return TrainingsOneByOne(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("slurm")
            training = any(part in item.nodeid for part in TRAININGS)
            assert training == bool(item.get_closest_marker("deepspeed")), f"add {item.nodeid} to TRAININGS"


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
