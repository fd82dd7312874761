"""Real trainings, submitted as a person would."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.training import Outcome, make_config, start

from hpc_resume.journal.folder import SubmissionFolder


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., Outcome]:
    """Submit a tiny training with some settings changed, and wait for its end."""

    def run(**changes: Any) -> Outcome:
        folder = tmp_path / f"case-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        path = folder / "config.yaml"
        path.write_text(yaml.safe_dump(make_config(folder, **changes)), encoding="utf-8")
        process = start("submit", str(path))
        output, _ = process.communicate(timeout=300)
        return Outcome(process.returncode, output, SubmissionFolder(folder / "runs" / "test"))

    return run
