from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from supervisor.harness import ScriptedRun, scripted_runs


@pytest.fixture
def scripted_run(tmp_path: Path) -> Iterator[Callable[..., ScriptedRun]]:
    """`scripted_run(*actions, **settings)`: a run whose ranks follow a script; nothing of it outlives the test."""
    with scripted_runs(tmp_path) as make:
        yield make
