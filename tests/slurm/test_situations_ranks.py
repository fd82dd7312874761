"""Ranks that fail, die, hang or outlive their job, on a real cluster; the numbers are those of known situations."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from slurm.cluster import MiniSlurm
from slurm.runs import SlurmRuns, submit_scripted

from hpc_resume.cluster.processes import is_running
from hpc_resume.cluster.srun import SrunWorkers, ended_ranks
from hpc_resume.config.cluster_section import ClusterConfig
from hpc_resume.journal.folder import RunFolder
from hpc_resume.journal.metrics import read_rows
from hpc_resume.recovery import Decision
from hpc_resume.recovery import events as ev

IN_USE = (
    "The server socket has failed to listen on any local network address. "
    "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
)
"""What torch says."""


def crash_all(step: int, ranks: int = 2, **more: Any) -> list[dict[str, Any]]:
    return [{"do": "crash", "step": step, "rank": rank, **more} for rank in range(ranks)]


def crash_last(step: int, ranks: int = 2, **more: Any) -> list[dict[str, Any]]:
    """The last rank fails, and the others lose their connection to it."""
    last, lost = ranks - 1, {**more, "message": "Connection closed by peer"}
    others = [{"do": "crash", "step": step, "rank": rank, **lost} for rank in range(1, last)]
    return [
        {"do": "crash", "step": step, "rank": last, **more},
        {"do": "lose_peer", "step": step, "peer": last, **more},
        *others,
    ]


def report(runs: SlurmRuns, attempt: int, rank: int) -> dict[str, Any]:
    """What a rank said of itself."""
    found: dict[str, Any] = json.loads(runs.run().rank_report(attempt, rank).read_text())
    return found


def log(runs: SlurmRuns, attempt: int, rank: int) -> str:
    return runs.run().log(attempt, rank).read_text()


def facts(runs: SlurmRuns, job_id: str) -> dict[str, str]:
    """What Slurm says of a job."""
    return next(job for job in runs.cluster.jobs() if job["JobId"] == job_id)


def rules(runs: SlurmRuns) -> list[str]:
    """By which rules was decided what to do about each end."""
    decisions: list[Decision] = [event.decision for event in runs.events(ev.Decided)]
    return [decision.rule for decision in decisions]


def where_attempts_ran(runs: SlurmRuns) -> list[tuple[str, ...]]:
    return [event.nodes for event in runs.events(ev.AttemptStarted)]


def wait_for_end(runs: SlurmRuns, outcome: str, state: str) -> dict[str, str]:
    """Wait until the run has ended for good; return what Slurm says of its job then, which must be over."""
    runs.wait(lambda: runs.history().stop is not None, "the run has ended")
    status = runs.status()
    runs.wait(lambda: facts(runs, status["job"])["JobState"] == state, f"job {status['job']} is {state}")
    assert runs.status()["state"] == outcome
    assert runs.cluster.run("squeue", "--noheader") == ""
    return facts(runs, status["job"])


def test_a19_a23_exceptions_on_all_ranks_and_then_on_one_are_tried_again_until_the_budget_is_spent(
    slurm: MiniSlurm, tmp_path: Path
) -> None:
    runs = submit_scripted(
        slurm,
        tmp_path,
        *crash_all(4, attempt=1, message="all fail"),
        # The other one does not notice, and is ended by Slurm.
        {"do": "crash", "step": 4, "rank": 1, "attempt": 2, "message": "alone", "error": "TrainerError"},
        {"do": "hang", "step": 4, "rank": 0, "attempt": 2},
        recovery={"crash_budget": 1},
    )
    job = wait_for_end(runs, "failed", "FAILED")
    assert (job["ExitCode"], job["Restarts"]) == ("1:0", "1")
    assert rules(runs) == ["first start", "crash", "budget spent"]
    first, second = runs.events(ev.AttemptEnded)
    # The code that srun leaves with is that of one rank, or of one that was ended; none of it counts.
    assert (first.cause, first.message) == ("crash", f"rank {first.rank}: RuntimeError: all fail")
    assert (second.cause, second.message) == ("crash", "rank 1: TrainerError: alone")
    assert (second.rank, second.node) == (1, runs.nodes()[1])
    assert "rank 1: TrainerError: alone" in runs.status()["last_word"]
    for (attempt, rank), message in {(1, 0): "all fail", (1, 1): "all fail", (2, 1): "alone"}.items():
        assert "Traceback" in log(runs, attempt, rank)
        assert log(runs, attempt, rank).endswith(f"Error: {message}\n")


def test_a21_a26_the_same_exception_on_a_second_node_stops_the_run_and_each_attempt_keeps_its_logs(
    slurm: MiniSlurm, tmp_path: Path
) -> None:
    runs = submit_scripted(
        slurm,
        tmp_path,
        *[action for n in (1, 2, 3) for action in crash_last(4, attempt=n, message=f"as always, {n}")],
    )
    job = wait_for_end(runs, "failed", "FAILED")
    first, second, third = where_attempts_ran(runs)
    bad, other = first[1], third[1]
    assert second[1] == bad
    assert bad not in third
    assert [end.node for end in runs.events(ev.AttemptEnded)] == [bad, bad, other]
    assert (job["ExcNodeList"], job["ExitCode"], job["Restarts"]) == (bad, "1:0", "2")
    assert rules(runs) == ["first start", "crash", "same crash, other node", "same crash twice"]
    reason = f"the same failure twice since the checkpoint at step 2, on {bad} and on {other}"
    assert f"{reason}: rank 1: RuntimeError: as always, 3" in runs.status()["last_word"]

    for attempt in (1, 2, 3):
        assert log(runs, attempt, 1).endswith(f"RuntimeError: as always, {attempt}\n")
    supervisor = runs.run().supervisor_log().read_text()
    assert re.findall(r"starting .* --job-name=attempt-(\d)", supervisor) == ["1", "2", "3"]
    found = [supervisor.index(text) for n in (1, 2, 3) for text in (f"job-name=attempt-{n} ", f"as always, {n}")]
    assert found == sorted(found)


def test_a21_the_same_exception_stops_a_run_at_once_that_needs_all_nodes(slurm: MiniSlurm, tmp_path: Path) -> None:
    runs = submit_scripted(slurm, tmp_path, *crash_last(4, ranks=4, times=9), cluster__nodes=4)
    job = wait_for_end(runs, "failed", "FAILED")
    assert where_attempts_ran(runs) == [("n1", "n2", "n3", "n4")] * 2
    assert rules(runs) == ["first start", "crash", "same crash twice"]
    assert "no other node can be had" in runs.status()["last_word"]
    assert (job["ExcNodeList"], job["Restarts"]) == ("(null)", "1")


def test_a20_bad_nodes_are_avoided_one_after_the_other_until_the_run_finishes(slurm: MiniSlurm, tmp_path: Path) -> None:
    runs = submit_scripted(
        slurm,
        tmp_path,
        *[action for attempt in (1, 2) for action in crash_last(4, attempt=attempt)],
        *[action for attempt in (3, 4) for action in crash_last(4, attempt=attempt, error="TrainerError")],
        {"do": "wait", "step": 7, "attempt": 5},
        recovery={"crash_budget": 4},
    )
    runs.wait_for_word("waiting at 7")
    first, second, third, fourth, fifth = where_attempts_ran(runs)
    assert (first[1], third[1]) == (second[1], fourth[1])
    bad = {first[1], third[1]}
    assert len(bad) == 2
    assert set(fifth) == {"n1", "n2", "n3", "n4"} - bad
    excluded = facts(runs, runs.job())["ExcNodeList"]
    assert set(slurm.run("scontrol", "show", "hostnames", excluded).split()) == bad
    runs.say("go")
    wait_for_end(runs, "finished", "COMPLETED")


def test_a22_a38_a_killed_rank_takes_the_step_along_and_the_next_attempt_meets_at_another_port(
    slurm: MiniSlurm, tmp_path: Path
) -> None:
    runs = submit_scripted(
        slurm,
        tmp_path,
        *crash_all(1, attempt=1, message=IN_USE),
        # Rank 0 says first that it is there; that it is the survivor must be known all the same.
        {"do": "hang", "step": 0, "rank": 1, "attempt": 2},
        {"do": "hang", "step": 5, "rank": 0, "attempt": 2},
        {"do": "wait", "step": 7, "rank": 0, "attempt": 3},
    )
    runs.wait_for_word("starting")
    runs.wait(runs.run().rank_report(2, 0).exists, "rank 0 has said who it is")
    port = port_of(runs, 2, 0)
    # What is left of an attempt may hold its port for long.
    with socket.create_server(("", port)):
        runs.say("begin")
        runs.wait(lambda: any(row.get("step") == 4 for row in read_rows(runs.run().metrics(2))), "rank 0 is in step 5")
        os.kill(report(runs, 2, 1)["pid"], signal.SIGKILL)
        runs.wait_for_event(ev.AttemptEnded, count=2, limit_s=20)
        survivor = report(runs, 2, 0)
        assert not is_running(survivor["pid"], survivor["start_ticks"])
        runs.wait_for_word("waiting at 7")
        assert port_of(runs, 3, 0) == port_of(runs, 3, 1) != port
    taken, killed = runs.events(ev.AttemptEnded)
    assert (taken.cause, killed.cause, killed.fingerprint) == ("port", "crash", "killed")
    assert (killed.rank, killed.node) == (1, where_attempts_ran(runs)[1][1])
    assert re.fullmatch(r"rank 1 on n\d was killed \(exit code 137\)", killed.message)
    assert rules(runs) == ["first start", "port taken", "crash"]
    assert facts(runs, runs.job())["Restarts"] == "1"
    runs.say("go")
    wait_for_end(runs, "finished", "COMPLETED")


def port_of(runs: SlurmRuns, attempt: int, rank: int) -> int:
    """The port at which a rank meets the others."""
    environment = Path(f"/proc/{report(runs, attempt, rank)['pid']}/environ").read_bytes().split(b"\0")
    return next(int(value.partition(b"=")[2]) for value in environment if value.startswith(b"MASTER_PORT="))


def test_a_hang_leaves_the_stacks_of_all_ranks_in_their_logs_and_is_tried_again(
    slurm: MiniSlurm, tmp_path: Path
) -> None:
    runs = submit_scripted(
        slurm,
        tmp_path,
        {"do": "hang", "step": 4, "rank": 0},
        supervisor__hang_min_s=3.0,
    )
    job = wait_for_end(runs, "finished", "COMPLETED")
    assert job["Restarts"] == "1"
    hang, finished = runs.events(ev.AttemptEnded)
    assert (hang.cause, finished.cause) == ("hang", "finished")
    assert re.fullmatch(r"no sign of life for \d+ s", hang.message)
    assert rules(runs) == ["first start", "hang", "finished"]
    for rank, function in ((0, "fail"), (1, "follow")):
        assert re.search(rf'File ".*scripted_worker.py", line \d+ in {function}\b', log(runs, 1, rank))


@pytest.mark.parametrize(
    "text",
    [
        # Slurm 22.05, 23.11; and what srun says of the task itself.
        "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=1.0. "
        "Some of your processes may have been killed by the cgroup out-of-memory handler.",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0. Some of the step tasks have been OOM Killed.",
        "srun: error: n2: task 1: Out Of Memory",
    ],
    ids=["oom-kill", "oom_kill", "srun"],
)
def test_a22_a_rank_that_was_killed_for_its_memory_is_told_apart_by_what_srun_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    # Nobody is killed for memory on the test cluster, which has no cgroups.
    assert out_of_memory(tmp_path / "yes", monkeypatch, text)
    assert not out_of_memory(tmp_path / "no", monkeypatch, "srun: error: n2: task 1: Killed")


def out_of_memory(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> bool:
    """What is made of an srun that prints this and fails."""
    program = folder / "bin" / "srun"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{text}' >&2\nexit 137\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    workers = SrunWorkers(RunFolder(folder / "run-0000"), 1, 1, ClusterConfig(nodes=2), ("n1", "n2"))
    assert workers.wait(timeout_s=10.0) == 137
    return workers.ran_out_of_memory()


def test_srun_says_which_rank_was_the_first_to_end() -> None:
    text = (
        "srun: Job step aborted: Waiting up to 7 seconds for job step to finish.\n"
        "srun: error: n2: tasks 3,5-6: Killed\n"
        "srun: launch/slurm: _step_signal: Terminating StepId=1.0\n"
        "srun: error: n[1,3]: task 0: Exited with exit code 1\n"
    )
    assert ended_ranks(text) == [3, 5, 6, 0]
