"""Events in words."""

from __future__ import annotations

from typing import Any

import pytest

from hpc_resume.recovery import events as ev
from hpc_resume.reporting.sentences import sentence

INCIDENT: dict[str, Any] = {
    "attempt": 1,
    "detector": "spike",
    "onset_step": 8,
    "onset_position": 56,
    "step": 10,
    "position": 80,
    "message": "loss 9",
}
NEAR_MISS = {name: value for name, value in INCIDENT.items() if not name.endswith("position")}


@pytest.mark.parametrize(
    ("known", "words"),
    [
        pytest.param({}, "spike", id="an old journal"),
        pytest.param({"severity": 1.0, "may_recover": True}, "spike", id="just over the limit"),
        pytest.param({"severity": 2.5, "may_recover": True}, "spike, 2.5 times its limit", id="far over it"),
        pytest.param({"severity": 1.0, "may_recover": False}, "spike, can't recover", id="for good"),
        pytest.param(
            {"severity": 1234.5, "may_recover": False}, "spike, 1.23e+03 times its limit, can't recover", id="the worst"
        ),
    ],
)
def test_an_anomaly_is_told_with_how_far_it_went_where_that_is_known(known: dict[str, Any], words: str) -> None:
    incident = sentence(ev.LossIncident(**INCIDENT, **known))
    assert incident == f"loss incident since step 8, seen at step 10 ({words}): loss 9"
    assert sentence(ev.NearMiss(**NEAR_MISS, **known)) == f"near miss at step 8 ({words}): loss 9"
