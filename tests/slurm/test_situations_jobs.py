"""Real situations of jobs, numbered as they are in the list that they come from: what must come out right."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from slurm.cluster import MiniSlurm
from slurm.elements import Action, submit_elements
from slurm.runs import incarnations

from hpc_resume.recovery import events as ev

ALIVE = {"running", "starting", "requeued"}
WAIT: Action = {"do": "wait", "step": 5, "attempt": 1}
QUEUE = ("squeue", "--all", "--noheader")


def test_a04_two_signals_at_once_are_one_save_and_one_requeue(slurm: MiniSlurm, tmp_path: Path) -> None:
    # To the ranks, to the supervisor alone, and to both.
    kinds: list[list[str]] = [[], ["--batch"], ["--full"]]
    runs = submit_elements(slurm, tmp_path, [WAIT], [WAIT], [WAIT])
    for index in range(len(kinds)):
        runs.wait_to_hear(index, "waiting at 5")
    signals = [
        subprocess.Popen(["scancel", "--signal=USR2", *kind, runs.name_of(index)], env=slurm.environment())
        for index, kind in enumerate(kinds)
        for _ in range(2)
    ]
    assert [process.wait() for process in signals] == [0] * 6
    for index in range(len(kinds)):
        runs.wait_for_state("finished", index=index)
        assert runs.causes(index) == ["preempted", "finished"]
        (agreed,) = runs.events(ev.StopAgreed, index)
        assert agreed.step == 5
        assert [event.step for event in runs.events(ev.Resumed, index)] == [0, 5]
        saved = [event.checkpoint.step for event in runs.events(ev.CheckpointCommitted, index)]
        assert saved == [2, 4, 5, 6, 8, 10, 12]
        assert runs.in_slurm(index)["Restarts"] == "1"


def test_a08_a09_a11_runs_that_lose_a_node_go_on_elsewhere_and_are_never_called_failed(
    slurm: MiniSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each run fills its nodes. One loses its second node, the other one its first, and its supervisor with that.
    stuck: Action = {"do": "save_stalls", "step": 6, "attempt": 1}
    runs = submit_elements(slurm, tmp_path, [stuck], [stuck], cluster__cpus_per_rank=4)
    for index in (0, 1):
        runs.wait_to_hear(index, "saving")
    dead = [runs.nodes(0)[1], runs.nodes(1)[0]]
    for name in dead:
        slurm.kill_node(name)

    seen = runs.watch_states(
        monkeypatch, lambda: all(runs.history(index).finished for index in (0, 1)), "both runs have finished"
    )
    for index in (0, 1):
        runs.wait_for_state("finished", index=index)
        assert "requeued" in seen[index]
        assert set(seen[index]) <= {*ALIVE, "finished"}
        assert incarnations(slurm, runs.name_of(index))[0] == "NODE_FAIL"
        first, last = runs.events(ev.AttemptEnded, index)
        assert (first.cause, last.cause) == ("node", "finished")
        assert dead[index] in first.node.split(", ")
        newest = runs.events(ev.Resumed, index)[-1]
        assert (newest.step, newest.checkpoint) == (4, "step-000000004.s000002")
        assert not set(runs.nodes(index)) & set(dead)
        # Where the supervisor died with its node, only the next one can have written down what became of it.
        assert first.found_later == (index == 1)
    (lost,) = runs.events(ev.ClaimLost, 1)
    assert lost.claim == 1


def test_a31_a11_a_run_in_its_second_attempt_is_running_and_stays_alive_when_suspended_or_held(
    slurm: MiniSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again: Action = {"do": "wait", "step": 7, "attempt": 2}
    runs = submit_elements(slurm, tmp_path, [{"do": "crash", "step": 5}, again], cluster__nodes=1)
    name = runs.name_of()
    runs.wait_to_hear(0, "waiting at 7")
    summary = runs.status()
    assert (summary["state"], summary["attempts"], runs.causes()) == ("running", 2, ["crash"])

    def state_is(wanted: str) -> bool:
        return runs.in_slurm()["JobState"] == wanted

    slurm.run("scontrol", "suspend", name)
    assert state_is("SUSPENDED")
    assert runs.states() == ["running"]
    slurm.run("scontrol", "resume", name)
    runs.wait(lambda: state_is("RUNNING"), "the job runs again")

    # Something in the job that does not want to go keeps it COMPLETING until KillWait is over.
    stubborn = ["srun", "--overlap", f"--jobid={name}", "--nodes=1", "--ntasks=1", "sh", "-c"]
    with subprocess.Popen(
        [*stubborn, f"trap '' TERM; touch {tmp_path}/run-0000/stays; while :; do sleep 1; done"],
        env=slurm.environment(),
    ) as extra:
        runs.wait_to_hear(0, "stays")
        slurm.run("scontrol", "requeuehold", name)
        seen_in_slurm: set[str] = set()

        def is_held() -> bool:
            seen_in_slurm.add(runs.in_slurm()["JobState"])
            return bool(seen_in_slurm & {"PENDING", "REQUEUE_HOLD"})

        (seen,) = runs.watch_states(monkeypatch, is_held, "the job is held in the queue")
        extra.wait()
    assert "COMPLETING" in seen_in_slurm
    assert set(seen) <= ALIVE
    summary = runs.status()
    assert summary["state"] == "requeued"
    assert f"job {name} waits in Slurm's queue (job_requeued_in_held_state)" in summary["last_word"]

    slurm.run("scontrol", "release", name)
    (seen,) = runs.watch_states(monkeypatch, lambda: runs.history().finished, "the run has finished")
    assert set(seen) <= {*ALIVE, "finished"}
    runs.wait_for_state("finished")
    assert runs.causes() == ["crash", "preempted", "finished"]


def test_a12_only_the_element_with_the_incident_is_requeued(slurm: MiniSlurm, tmp_path: Path) -> None:
    # The last element of an array has the array's own number, by which all of them would be requeued.
    incident: Action = {"do": "loss", "step": 6, "onset": 5}
    runs = submit_elements(slurm, tmp_path, [WAIT], [WAIT], [incident, {"do": "wait", "step": 8, "attempt": 2}])
    runs.wait_to_hear(2, "waiting at 8")
    assert runs.name_of(2) == f"{runs.in_slurm(2)['JobId']}_2"
    assert runs.states() == ["running"] * 3
    for index in range(3):
        runs.say_to(index, "go")
    for index in range(3):
        runs.wait_for_state("finished", index=index)
    assert [runs.causes(index) for index in range(3)] == [["finished"], ["finished"], ["decided", "finished"]]
    assert [runs.in_slurm(index)["Restarts"] for index in range(3)] == ["0", "0", "1"]


def test_a16_without_accounting_every_end_is_told_right_and_quietly(
    start_slurm: Callable[..., MiniSlurm], tmp_path: Path
) -> None:
    # As many runs as an array can have here.
    slurm = start_slurm(accounting=False, settings={"MaxArraySize": "4"})
    crash: Action = {"do": "crash", "step": 6}
    changes: dict[str, Any] = {"cluster__nodes": 1, "cluster__parallelism": 3, "recovery": {"crash_budget": 0}}
    runs = submit_elements(slurm, tmp_path, [WAIT], [WAIT, crash], [WAIT], [], **changes)

    def states() -> list[str]:
        done = runs.command("status", str(runs.folder.path), "--json")
        assert done.stderr == ""
        return [each["state"] for each in json.loads(done.stdout)]

    for index in range(3):
        runs.wait_to_hear(index, "waiting at 5")
    assert states() == ["running", "running", "running", "waiting"]
    slurm.run("scancel", runs.name_of(3))
    assert states() == ["running", "running", "running", "cancelled"]
    slurm.run("scancel", runs.name_of(2))
    runs.say_to(0, "go")
    runs.say_to(1, "go")
    runs.wait(lambda: slurm.run(*QUEUE) == "", "the queue is empty")
    assert states() == ["finished", "failed", "cancelled", "cancelled"]
    assert [runs.causes(index) for index in range(4)] == [["finished"], ["crash"], ["cancelled"], []]
    assert [runs.in_slurm(index)["Restarts"] for index in range(4)] == ["0"] * 4
    done = runs.command("resubmit", str(runs.folder.path), "--dry-run")
    assert (done.stdout, done.stderr) == ("would send run 1 (of 4) again\n", "")
