"""What a run may call its result."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from support.training import Outcome

from hpc_resume.journal.metrics import read_rows

pytestmark = pytest.mark.deepspeed

OVERFLOW = {"kind": "spike", "step": 12, "lr_factor": 1.1e41, "duration_steps": 1}
"""A step of the size of the largest fp32 number, so that some weights become infinite."""


def test_weights_that_the_very_last_update_spoiled_are_not_the_result(train: Callable[..., Outcome]) -> None:
    outcome = train(
        training__steps=12,
        training__schedule="constant",
        training__adam_betas=[0.0, 0.95],
        faults=[OVERFLOW],
    )
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
