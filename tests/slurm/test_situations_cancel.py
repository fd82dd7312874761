"""A cancel is final, whoever gives it and whatever the run is doing at that moment."""

from __future__ import annotations

from pathlib import Path

import pytest
from slurm.cluster import MiniSlurm
from slurm.elements import Elements, submit_elements

from hpc_resume.journal.reader import read_operator
from hpc_resume.recovery import events as ev

KILL_WAIT_S = 5.0
SLACK_S = 10.0
"""What a busy machine may take longer than Slurm would."""

PHASES = ("starts", "trains", "saves", "has decided a requeue", "was requeued", "waits")
STARTS, TRAINS, SAVES, DECIDED, REQUEUED, WAITS = range(len(PHASES))
LOSS = {"do": "loss", "step": 6, "onset": 5}


def submit_one_for_each_phase(slurm: MiniSlurm, home: Path) -> Elements:
    """Send an array, and return when each of its runs is in its phase."""
    elements = (
        [{"do": "wait", "step": 0}],
        [{"do": "wait", "step": 5}],
        [{"do": "save_stalls", "step": 4}],
        [{**LOSS, "then": "stay"}],
        [{"do": "wait", "step": 5}, LOSS],
        [],
    )
    # The array's limit keeps the last one in the queue until it is held there.
    runs = submit_elements(slurm, home, *elements, cluster__parallelism=len(PHASES) - 1)
    slurm.run("scontrol", "hold", runs.name_of(WAITS))
    for index, word in enumerate(("starting", "waiting at 5", "saving", "decided", "waiting at 5")):
        runs.wait_to_hear(index, word)
    runs.say_to(REQUEUED, "go")
    runs.wait(lambda: runs.in_slurm(REQUEUED)["JobState"] == "PENDING", "a run is back in the queue")
    slurm.run("scontrol", "hold", runs.name_of(REQUEUED))
    assert runs.states() == ["starting", *["running"] * 3, "requeued", "waiting"]
    return runs


def assert_all_end_for_good(runs: Elements) -> None:
    """Nothing of them is left within KillWait, nothing comes back, and everybody says `cancelled`."""
    queue = ("squeue", "--all", "--noheader")
    runs.wait(lambda: runs.cluster.run(*queue) == "", "the queue is empty", KILL_WAIT_S + SLACK_S)
    numbers = range(len(PHASES))
    assert {PHASES[n]: runs.in_slurm(n)["JobState"] for n in numbers} == dict.fromkeys(PHASES, "CANCELLED")
    restarts = {PHASES[n]: runs.in_slurm(n)["Restarts"] for n in numbers}
    assert restarts == {**dict.fromkeys(PHASES, "0"), PHASES[REQUEUED]: "1"}

    assert dict(zip(PHASES, runs.states(), strict=True)) == dict.fromkeys(PHASES, "cancelled")
    causes = {PHASES[n]: runs.causes(n) for n in numbers}
    assert causes == {
        **{phase: ["cancelled"] for phase in PHASES},
        PHASES[REQUEUED]: ["decided"],  # its attempt was over before
        PHASES[WAITS]: [],
    }
    assert "brings them back" in runs.command("resubmit", str(runs.folder.path)).stdout
    back = runs.command("resubmit", str(runs.folder.path), "--cancelled", "--dry-run").stdout
    assert back == "would send runs 0, 1, 2, 3, 4, 5 again\n"


def test_a01_a_cancel_in_slurm_is_final_in_every_phase(slurm: MiniSlurm, tmp_path: Path) -> None:
    runs = submit_one_for_each_phase(slurm, tmp_path)
    slurm.run("scancel", runs.name_of(WAITS).partition("_")[0])
    assert_all_end_for_good(runs)


def test_a01_a_cancel_is_recorded_and_then_final_in_every_phase(slurm: MiniSlurm, tmp_path: Path) -> None:
    runs = submit_one_for_each_phase(slurm, tmp_path)
    assert runs.command("cancel", str(runs.folder.path)).stdout == "cancelled runs 0, 1, 2, 3, 4, 5\n"
    assert_all_end_for_good(runs)
    intent, outcome = [record.event for record in read_operator(runs.folder)][2:]
    assert isinstance(intent, ev.CancelRequested)
    assert intent.runs == (0, 1, 2, 3, 4, 5)
    assert isinstance(outcome, ev.OperatorOutcome)
    assert outcome.ok


@pytest.mark.slow
def test_a01_a_cancel_that_slurm_does_not_hear_is_final_all_the_same(slurm: MiniSlurm, tmp_path: Path) -> None:
    runs = submit_elements(slurm, tmp_path, [{"do": "wait", "step": 5}], [{"do": "save_stalls", "step": 4}])
    runs.wait_to_hear(0, "waiting at 5")
    runs.wait_to_hear(1, "saving")
    with slurm.stalled_controller():
        done = runs.command("cancel", str(runs.folder.path), check=False)
        assert done.returncode == 3
        assert "no supervisor goes on with that" in done.stderr
    # Nobody has to type it again.
    for index in (0, 1):
        runs.wait_for_state("cancelled", index=index)
        assert runs.causes(index) == ["cancelled"]
    runs.wait(lambda: slurm.run("squeue", "--all", "--noheader") == "", "the queue is empty")
