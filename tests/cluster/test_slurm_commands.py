"""An answer, a refusal and silence are told apart; nobody is taken for dead because nobody could be asked."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from support.stand_in_slurm import INVALID, STALLED, UNREACHABLE, StandInSlurm, job_line

from hpc_resume.cluster.liveness import JobBook, liveness
from hpc_resume.cluster.local_allocation import LocalAllocation
from hpc_resume.cluster.slurm_commands import (
    SilentError,
    ask,
    down_nodes,
    earlier_states,
    final_states,
    in_one_line,
    node_address,
    setting,
    show_jobs,
)
from hpc_resume.errors import ClusterError
from hpc_resume.recovery.events import ClaimRequested


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandInSlurm:
    """Programs that answer in Slurm's place."""
    return StandInSlurm(tmp_path / "bin", monkeypatch)


SILENT = {
    "unreachable": UNREACHABLE,
    "stalled": STALLED,
    "restarting": "scontrol: error: Unexpected message received\n",
    "the database": "sacct: error: slurmdbd: Slurm database is not available\n",
}
REFUSALS = {
    "unknown": INVALID,
    "not allowed": "slurm_update error: Access/permission denied\n",
    "too late": "slurm_update error: Job is no longer pending execution\n",
}


@pytest.mark.parametrize("text", SILENT.values(), ids=SILENT)
def test_a_controller_that_does_not_answer_is_silent(slurm: StandInSlurm, text: str) -> None:
    slurm.refuses("scontrol", text)
    with pytest.raises(SilentError):
        ask("scontrol", "requeue", "7")


@pytest.mark.parametrize("text", REFUSALS.values(), ids=REFUSALS)
def test_a_controller_that_refuses_is_not_silent(slurm: StandInSlurm, text: str) -> None:
    slurm.refuses("scontrol", text)
    with pytest.raises(ClusterError, match=r"`scontrol requeue 7` failed: .*" + text.strip()) as caught:
        ask("scontrol", "requeue", "7")
    assert not isinstance(caught.value, SilentError)


def test_an_answer_that_takes_too_long_is_silence(slurm: StandInSlurm) -> None:
    path = slurm.folder / "scontrol"
    path.write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    path.chmod(0o755)
    with pytest.raises(SilentError, match=r"`scontrol ping` gave no answer within 0 s"):
        ask("scontrol", "ping", limit_s=0.1)


def test_a_program_that_fails_without_a_word_is_quoted_by_its_code(slurm: StandInSlurm) -> None:
    slurm.answers("sinfo", code=3)
    with pytest.raises(ClusterError, match="`sinfo` failed: exit code 3"):
        ask("sinfo")


def test_a_program_that_is_missing_is_named(slurm: StandInSlurm) -> None:
    with pytest.raises(ClusterError, match="there is no `scontrol` on PATH here") as caught:
        ask("scontrol", "ping")
    assert not isinstance(caught.value, SilentError)


def test_a_call_is_not_ended_by_what_ends_its_caller(slurm: StandInSlurm) -> None:
    path = slurm.folder / "scontrol"
    path.write_text("#!/bin/sh\nkill -TERM $$\necho done\n")
    path.chmod(0o755)
    assert ask("scontrol", "requeue", "7") == "done\n"
    assert signal.getsignal(signal.SIGTERM) != signal.SIG_IGN


def test_no_list_of_elements_is_cut_off(slurm: StandInSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_BITSTR_LEN", "5")
    path = slurm.folder / "scontrol"
    path.write_text('#!/bin/sh\necho "$SLURM_BITSTR_LEN"\n')
    path.chmod(0o755)
    # By its manual, 0 is for as long as it gets.
    assert ask("scontrol", "-o", "show", "job", "7") == "0\n"
    assert os.environ["SLURM_BITSTR_LEN"] == "5"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (UNREACHABLE, "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"),
        (
            "sbatch: error: Batch job submission failed: No\nsbatch: error: really\n",
            "Batch job submission failed: No; really",
        ),
        ("scontrol: fatal: no config\n\nscontrol: fatal: no config\n", "no config"),
        ("", ""),
    ],
)
def test_a_complaint_becomes_one_line(text: str, line: str) -> None:
    assert in_one_line(text) == line


def test_a_job_that_the_controller_does_not_know_is_no_error(slurm: StandInSlurm) -> None:
    slurm.refuses("scontrol", INVALID)
    assert show_jobs("7") == []
    assert slurm.asked("scontrol") == ["-o show job 7"]


@pytest.mark.parametrize("text", [UNREACHABLE, "slurm_load_jobs error: Access/permission denied\n"])
def test_a_job_that_can_not_be_asked_for_is_one(slurm: StandInSlurm, text: str) -> None:
    slurm.refuses("scontrol", text)
    with pytest.raises(ClusterError):
        show_jobs("7")


def test_the_accounting_knows_how_elements_ended(slurm: StandInSlurm) -> None:
    slurm.answers("sacct", "7_0|COMPLETED\n7_1|CANCELLED by 1000\n7_[2-4%2]|CANCELLED by 1000\n")
    assert final_states("7") == {
        "7_0": "COMPLETED",
        **dict.fromkeys(("7_1", "7_2", "7_3", "7_4"), "CANCELLED"),
    }


@pytest.mark.parametrize("text", ["sacct: error: Slurm accounting storage is disabled\n", SILENT["the database"]])
def test_without_accounting_there_is_no_second_opinion(slurm: StandInSlurm, text: str) -> None:
    slurm.refuses("sacct", text)
    assert final_states("7") == {}
    assert earlier_states("7") == []


def test_every_start_of_a_job_has_its_own_end(slurm: StandInSlurm) -> None:
    slurm.answers("sacct", "NODE_FAIL\nCANCELLED by 0\nRUNNING\n")
    assert earlier_states("7_1") == ["NODE_FAIL", "CANCELLED", "RUNNING"]


def test_only_nodes_that_slurm_has_given_up_are_down(slurm: StandInSlurm) -> None:
    states = {"n1": "allocated", "n2": "down*", "n3": "mixed*", "n4": "draining", "n5": "fail", "n6": "idle"}
    slurm.answers("sinfo", "".join(f"{name} {state}\n" for name, state in states.items()) + "n2 down*\n")
    assert down_nodes(states) == ("n2", "n5")
    assert down_nodes(()) == ()
    assert len(slurm.asked("sinfo")) == 1


def test_what_else_is_asked_for_is_found_in_the_answer(slurm: StandInSlurm) -> None:
    slurm.answers("scontrol", "MaxArraySize            = 1001\nSlurmdTimeout           = 300 sec\n")
    assert (setting("MaxArraySize"), setting("SlurmdTimeout"), setting("Nothing")) == ("1001", "300 sec", None)
    slurm.answers("scontrol", "NodeName=n1 Arch=x86_64 NodeAddr=10.0.0.7 NodeHostName=n1\n")
    assert node_address("n1") == "10.0.0.7"
    slurm.answers("scontrol", "NodeName=n1\n")
    assert node_address("n1") == "n1"


def test_each_array_is_asked_about_once(slurm: StandInSlurm) -> None:
    slurm.answers("scontrol", job_line("7_0", "RUNNING") + job_line("7_1", "PENDING", Restarts=2))
    slurm.answers("sacct", "7_2|FAILED\n7_3|RUNNING\n")
    book = JobBook()
    found = {job_id: book.find(job_id) for job_id in ("7_0", "7_1", "7_2", "7_3", "7_4")}
    assert {job_id: facts and facts.state for job_id, facts in found.items()} == {
        "7_0": "RUNNING",
        "7_1": "PENDING",
        "7_2": "FAILED",
        # The controller forgets only what is over, whatever the accounting has missed.
        "7_3": "GONE",
        "7_4": None,
    }
    assert not any(facts.lives for job_id, facts in found.items() if facts and job_id in ("7_2", "7_3"))
    assert (len(slurm.asked("scontrol")), len(slurm.asked("sacct"))) == (1, 1)


def test_a_silent_controller_is_asked_once_and_is_silent_for_every_element(slurm: StandInSlurm) -> None:
    slurm.refuses("scontrol", UNREACHABLE)
    book = JobBook()
    for job_id in ("7_0", "7_1"):
        with pytest.raises(SilentError):
            book.find(job_id)
    assert len(slurm.asked("scontrol")) == 1
    assert slurm.asked("sacct") == []


@pytest.fixture
def request_1() -> ClaimRequested:
    """A supervisor in the second start of a job, on a machine that can't be looked at from here."""
    here = LocalAllocation().request(1)
    return replace(here, cluster="slurm", job_id="7_1", restart_count=1, host="n3", boot_id="there", machine_id="x")


LIVES = {
    "it runs": (job_line("7_1", "RUNNING", Restarts=1), "alive"),
    "it is told to leave": (job_line("7_1", "RUNNING", Restarts=1, PreemptTime="2026-11-30T06:29:18"), "alive"),
    "it is ending": (job_line("7_1", "COMPLETING", Restarts=1), "alive"),
    "it is suspended": (job_line("7_1", "SUSPENDED", Restarts=1), "alive"),
    "it runs again": (job_line("7_1", "RUNNING", Restarts=2), "dead"),
    "it is in the queue again": (job_line("7_1", "PENDING", Restarts=2), "dead"),
    "it is held": (job_line("7_1", "REQUEUE_HOLD", Restarts=1), "dead"),
    "it ended": (job_line("7_1", "TIMEOUT", Restarts=1), "dead"),
    "another element runs": (job_line("7_2", "RUNNING", Restarts=1), "dead"),
}


@pytest.mark.parametrize(("answer", "expected"), LIVES.values(), ids=LIVES)
def test_whether_a_supervisor_in_slurm_is_alive(
    slurm: StandInSlurm, request_1: ClaimRequested, answer: str, expected: str
) -> None:
    slurm.answers("scontrol", answer)
    slurm.answers("sacct", "")
    assert liveness(request_1) == expected


def test_a_supervisor_whose_job_nobody_knows_any_more_is_dead(slurm: StandInSlurm, request_1: ClaimRequested) -> None:
    slurm.refuses("scontrol", INVALID)
    assert liveness(request_1) == "dead"


@pytest.mark.parametrize("answer", [UNREACHABLE, STALLED, None], ids=["unreachable", "stalled", "no Slurm here"])
def test_a_supervisor_whose_job_can_not_be_asked_for_may_live(
    slurm: StandInSlurm, request_1: ClaimRequested, answer: str | None
) -> None:
    if answer is not None:
        slurm.refuses("scontrol", answer)
    slurm.answers("sacct", "7_1|COMPLETED\n")
    assert liveness(request_1) == "unknown"


def test_a_supervisor_on_a_machine_is_not_asked_about_in_slurm(slurm: StandInSlurm) -> None:
    slurm.refuses("scontrol", INVALID)
    assert liveness(LocalAllocation().request(1)) == "alive"
    assert slurm.asked("scontrol") == []
