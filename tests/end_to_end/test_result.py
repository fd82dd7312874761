"""What a run may call its result."""

from __future__ import annotations

import filecmp
import json
import subprocess
import sys

import pytest
from support.training import Outcome, environment, train

from hpc_resume.journal.metrics import read_rows

pytestmark = pytest.mark.deepspeed

OVERFLOW = {"kind": "spike", "step": 12, "lr_factor": 1.1e41, "duration_steps": 1}
"""A step of the size of the largest fp32 number, so that some weights become infinite."""


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """A run whose weights were spoiled by its last update, and then were not."""
    return train(
        tmp_path_factory.mktemp("spoiled"),
        training__steps=12,
        training__schedule="constant",
        training__adam_betas=[0.0, 0.95],
        faults=[OVERFLOW],
    )


def test_weights_that_the_very_last_update_spoiled_are_not_the_result(outcome: Outcome) -> None:
    assert outcome.code == 0, outcome.output
    history = outcome.history
    (incident,) = history.incidents
    # Every loss was fine: that of step 12 was taken before its update.
    losses = [row["loss"] for row in read_rows(outcome.run.metrics(1)) if "loss" in row]
    assert len(losses) == 12
    assert max(losses) < 10
    assert (incident.detector, incident.onset_step) == ("result", 12)
    assert "not finite after the last step" in incident.message
    assert [attempt.resumed.step for attempt in history.attempts if attempt.resumed] == [0, 8]
    assert history.finished is not None
    assert history.finished.step == 12
    assert json.loads((outcome.run.model / "config.json").read_text())["model_type"] == "llama"


def test_the_last_checkpoint_becomes_the_same_folder_as_the_result(outcome: Outcome) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hpc_resume", "export", str(outcome.folder.path), "--json"],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    last = outcome.history.lineage[-1]
    mine = outcome.run.path / "export-step-000000012"
    answer = json.loads(done.stdout)
    assert (answer["path"], answer["step"], answer["checkpoint"]) == (str(mine), 12, last.name)
    assert answer["parameters"] > 10_000
    first, second, third = done.stderr.splitlines()
    assert first.startswith(f"verifying {last.name}: ")
    assert second == f"reading the weights of {last.name}"
    assert third == f"writing {mine}"
    files = sorted(path.name for path in outcome.run.model.iterdir())
    assert "model.safetensors" in files
    assert sorted(path.name for path in mine.iterdir()) == files
    assert filecmp.cmpfiles(outcome.run.model, mine, files, shallow=False) == (files, [], [])
