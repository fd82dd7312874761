"""A supervisor is killed, for real, around every record that it writes; the next one must finish its work."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from supervisor.harness import ScriptedRun

from hpc_resume.journal.codec import kind_of

Make = Callable[..., ScriptedRun]

LOSS = {"do": "loss", "step": 9, "onset": 8}
RECORDS = (
    *("claim_requested", "claim_opened", "decided", "attempt_started", "attempt_ended", "claim_ended"),
    *("claim_requested", "claim_opened", "checkpoint_quarantined", "attempt_started", "attempt_ended", "decided"),
    "claim_ended",
)
"""What supervisors record of a run with this incident."""

FOLLOWS_AN_ACT = ("claim_requested", "checkpoint_quarantined", "attempt_ended")
"""Between any other record and the one before it nothing is done: killed there is killed after that one."""

POINTS = [
    pytest.param(when, number, id=f"{when}-{number}-{kind}")
    for number, kind in enumerate(RECORDS, start=1)
    for when in ("before", "after")
    if when == "after" or kind in FOLLOWS_AN_ACT
]


def test_the_story_has_the_records_that_are_swept(scripted_run: Make) -> None:
    run = scripted_run(LOSS)
    assert run.supervise_to_the_end() == [75, 0]
    written = [record for record in run.journal.records if record.file.startswith("claim-")]
    assert tuple(kind_of(type(record.event)) for record in written) == RECORDS


@pytest.mark.parametrize(("when", "number"), POINTS)
def test_a_run_finishes_wherever_its_supervisor_is_killed(scripted_run: Make, when: str, number: int) -> None:
    run = scripted_run(LOSS)
    codes = run.supervise_to_the_end(kill=[when, number])
    history = run.history
    assert codes.count(-9) == 1
    assert codes[-1] == 0
    assert history.finished is not None
    assert run.saved()[-1] == 12
    assert len(history.incidents) == 1
    assert sum(rewind.perturb for rewind in history.rewinds) >= 1
    assert all(claim.ended is not None for claim in history.claims)
    # What was saved after the onset is set aside, and only that.
    assert [name[:14] for name in history.set_aside] == ["step-000000008"]
    assert history.set_aside.keys() <= {p.name.removeprefix("quarantined.") for p in aside(run)}
    run.check()


@pytest.mark.parametrize(("when", "number"), [("before", 5), ("after", 5), ("after", 6), ("after", 7)])
def test_a_crash_costs_no_saved_step_wherever_the_supervisor_is_killed(
    scripted_run: Make, when: str, number: int
) -> None:
    run = scripted_run({"do": "crash", "step": 8})
    assert run.supervise_to_the_end(kill=[when, number]) == [-9, 0]
    assert run.steps(2) == list(range(7, 13))
    assert [d.rule for d in run.history.decisions[1:-1]] == ["node lost" if when == "before" else "crash"]
    run.check()


@pytest.mark.parametrize("number", [5, 6, 7])
def test_a_stop_is_kept_wherever_the_supervisor_is_killed(scripted_run: Make, number: int) -> None:
    run = scripted_run({"do": "crash", "step": -1, "error": "TrainerError", "times": 9})
    codes = run.supervise_to_the_end(kill=["after", number])
    assert codes == [-9, 1]
    assert len(run.history.attempts) == 1
    run.check()


@pytest.mark.parametrize("number", [5, 6, 7])
def test_a_run_that_is_sent_again_starts_wherever_the_supervisor_that_stopped_it_was_killed(
    scripted_run: Make, number: int
) -> None:
    run = scripted_run({"do": "crash", "step": -1, "error": "TrainerError"})
    assert run.supervise(kill=["after", number]) == -9
    run.resubmit()
    assert run.supervise() == 0
    assert run.history.decisions[-2].rule == "resubmitted"
    run.check()


def test_a_supervisor_that_is_killed_each_time_takes_its_ranks_along_and_loses_no_saved_step(
    scripted_run: Make,
) -> None:
    run = scripted_run(*({"do": "node_lost", "step": step} for step in (2, 4, 7, 8, 11)), ranks=2)
    codes = run.supervise_to_the_end()
    assert codes == [-9] * 5 + [0]
    resumed = [a.resumed.step for a in run.history.attempts if a.resumed]
    assert resumed == [0, 0, 2, 6, 6, 10]
    run.check()


def aside(run: ScriptedRun) -> list[object]:
    return list(run.folder.checkpoints.glob("quarantined.*"))
