"""What the cluster does to a job, as the supervisor of its run takes it: real processes, a cluster that says so."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any

import pytest
from supervisor.harness import ScriptedRun, end_of

from hpc_resume.cluster.processes import node_name
from hpc_resume.recovery import events as ev

Make = Callable[..., ScriptedRun]
PREEMPTED = {"cause": "preempted", "message": "Slurm needs its nodes for another job"}
TAKEN = {"cause": "preempted", "message": "Slurm took the job back into its queue", "final": True}
TIME_OVER = {"cause": "deadline", "message": "the job's time is over", "final": True}
CANCELLED = {"cause": "cancelled", "message": "the job was cancelled in Slurm", "final": True}
LOST = {"cause": "node", "message": "Slurm lost n2", "nodes": ["n2"], "final": True}
SILENT = {"error": "no answer"}


def interrupted(run: ScriptedRun, answer: dict[str, Any]) -> int:
    """Ask the supervisor to end, as this cluster does it, while the ranks wait before step 6."""
    supervisor = run.start(interruption=answer)
    run.wait_for_word("waiting at 6")
    supervisor.send_signal(signal.SIGTERM)
    return end_of(supervisor)[0]


def ends(run: ScriptedRun) -> list[str]:
    return [ended.cause for ended in run.events(ev.AttemptEnded)]


def test_a_preemption_with_grace_has_the_workers_save_and_the_job_goes_back(scripted_run: Make) -> None:
    run = scripted_run({"do": "wait", "step": 6})
    assert interrupted(run, PREEMPTED) == 75
    (ended,) = run.events(ev.AttemptEnded)
    # The clock of this machine says nothing: the workers left because they were asked to.
    assert ended.cause == "preempted"
    assert "saved at step 6" in ended.message
    assert run.history.decisions[-1].rule == "preempted"
    assert run.supervise() == 0
    assert run.steps(2)[0] == 7
    run.check()


@pytest.mark.parametrize(
    ("answer", "cause", "rule"),
    [(TAKEN, "preempted", "preempted"), (TIME_OVER, "deadline", "out of time"), (LOST, "node", "node lost")],
    ids=["requeued", "out of time", "node lost"],
)
def test_where_nothing_can_be_saved_any_more_the_run_goes_on_from_its_newest_checkpoint(
    scripted_run: Make, answer: dict[str, Any], cause: str, rule: str
) -> None:
    run = scripted_run({"do": "wait", "step": 6})
    assert interrupted(run, answer) == 75
    assert ends(run) == [cause]
    assert run.events(ev.StopAgreed) == []
    assert run.history.decisions[-1].rule == rule
    assert run.supervise() == 0
    assert run.steps(2)[0] == 5
    run.check()


def test_a_cancellation_in_slurm_is_recorded_once_and_stays(scripted_run: Make) -> None:
    run = scripted_run({"do": "wait", "step": 6})
    assert interrupted(run, CANCELLED) == 143
    assert [event.message for event in run.events(ev.JobCancelled)] == [CANCELLED["message"]]
    assert ends(run) == ["cancelled"]
    assert run.history.cancelled
    assert run.supervise() == 143
    assert len(run.history.attempts) == 1
    run.resubmit(cancelled=True)
    assert run.supervise() == 0
    run.check()


def test_a_stop_about_which_nobody_can_be_asked_does_not_become_one_that_stays(scripted_run: Make) -> None:
    run = scripted_run({"do": "wait", "step": 6})
    assert interrupted(run, SILENT) == 75
    assert ends(run) == ["preempted"]
    assert run.supervise() == 0
    run.check()


def test_a_wish_to_save_and_requeue_is_no_stop(scripted_run: Make) -> None:
    run = scripted_run({"do": "wait", "step": 6})
    supervisor = run.start()
    run.wait_for_word("waiting at 6")
    supervisor.send_signal(signal.SIGUSR2)
    assert end_of(supervisor)[0] == 75
    assert ends(run) == ["preempted"]
    assert run.supervise() == 0
    assert run.steps(2)[0] == 7
    run.check()


@pytest.mark.parametrize(
    ("answer", "code", "outcome"),
    [
        (PREEMPTED, 75, "requeued"),
        (TAKEN, 75, "requeued"),
        (LOST, 75, "requeued"),
        (CANCELLED, 143, "cancelled"),
        (None, 143, "stopped"),
    ],
    ids=["preempted", "requeued", "node lost", "cancelled", "a person"],
)
def test_a_supervisor_that_is_to_end_before_it_has_started_anything_asks_why(
    scripted_run: Make, answer: dict[str, Any] | None, code: int, outcome: str
) -> None:
    run = scripted_run()
    # It hears the signal at its very first chance, as what was held back while it was starting.
    command = ["-c", HELD.format(command=run.command(interruption=answer))]
    assert end_of(run.start_command(command))[0] == code
    assert [event.outcome for event in run.events(ev.ClaimEnded)] == [outcome]
    assert run.history.attempts == ()
    if code == 75:
        assert run.supervise() == 0
    run.check()


HELD = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
os.kill(os.getpid(), signal.SIGTERM)
os.execv(sys.executable, [sys.executable, *{command!r}])
"""


def test_the_same_crash_on_a_node_that_can_be_avoided_is_tried_once_more_without_it(scripted_run: Make) -> None:
    run = scripted_run({"do": "crash", "step": 7, "times": 2})
    codes = [run.supervise(avoidable=True)]
    avoided = run.folder.submission.path / "avoided"
    assert json.loads(avoided.read_text()) == []
    codes.append(run.supervise(avoidable=True))
    assert json.loads(avoided.read_text()) == [node_name()]
    codes.append(run.supervise(avoidable=True))
    assert codes == [75, 75, 0]
    assert [d.rule for d in run.history.decisions] == ["first start", "crash", "same crash, other node", "finished"]
    run.check()


def test_the_same_crash_where_no_other_node_can_be_had_stops(scripted_run: Make) -> None:
    run = scripted_run({"do": "crash", "step": 7, "times": 2})
    assert [run.supervise(), run.supervise()] == [75, 1]
    assert "and no other node can be had" in run.history.decisions[-1].reason
    run.check()


def test_a_crash_while_slurm_takes_the_job_is_no_crash(scripted_run: Make) -> None:
    run = scripted_run({"do": "crash", "step": 7})
    assert run.supervise(interruption=TAKEN) == 75
    assert ends(run) == ["preempted"]
    assert run.history.crashes == ()
    assert run.supervise() == 0
    run.check()


@pytest.mark.parametrize(
    ("answer", "cause", "where"),
    [
        (LOST, "node", "n2"),
        (TAKEN, "preempted", None),
        (TIME_OVER, "deadline", None),
        (None, "node", None),
    ],
    ids=["node lost", "requeued", "out of time", "nobody knows"],
)
def test_why_a_supervisor_vanished_is_asked_by_the_next_one(
    scripted_run: Make, answer: dict[str, Any] | None, cause: str, where: str | None
) -> None:
    run = scripted_run({"do": "node_lost", "step": 5})
    assert run.supervise() == -9
    assert run.supervise(why_lost=answer) == 0
    lost = run.events(ev.AttemptEnded)[0]
    assert (lost.cause, lost.node, lost.found_later) == (cause, where or node_name(), True)
    run.check()


def test_a_run_whose_job_was_cancelled_before_its_supervisor_could_write_that_stays_cancelled(
    scripted_run: Make,
) -> None:
    run = scripted_run({"do": "node_lost", "step": 5})
    assert run.supervise() == -9
    assert run.supervise(why_lost=CANCELLED) == 143
    assert run.supervise() == 143
    assert len(run.history.attempts) == 1
    run.check()
