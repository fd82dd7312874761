"""Real trainings, submitted as a person would."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.training import Outcome
from support.training import train as train_in


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., Outcome]:
    """Submit a tiny training with some settings changed, and wait for its end."""

    def run(**changes: Any) -> Outcome:
        folder = tmp_path / f"case-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        return train_in(folder, **changes)

    return run
