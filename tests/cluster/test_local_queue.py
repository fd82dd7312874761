from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from supervisor.harness import ScriptedRun, end_of, marked_processes, wait_until

from hpc_resume.cluster.processes import start_ticks
from hpc_resume.recovery import History
from hpc_resume.recovery import events as ev
from hpc_resume.reporting.jobs import Jobs
from hpc_resume.reporting.summary import summarize_submission

Queue = Callable[..., Any]


def test_runs_are_started_in_their_order_one_after_another(queue: Queue) -> None:
    one = queue(["0"], ["0"], ["0"])
    assert end_of(one.process)[0] == 0
    assert one.happened == ["start 0", "end 0", "start 1", "end 1", "start 2", "end 2"]


def test_no_more_runs_are_alive_than_asked_for_and_no_place_stays_empty(queue: Queue) -> None:
    two = queue(["waits"], ["waits"], ["0"], ["0"], parallelism=2)
    wait_until(lambda: len(two.starts()) == 2, "two runs are started")
    # Of the marked processes one is the queue.
    assert len(marked_processes(two.run.mark)) == 3
    assert sorted(two.starts()) == [0, 1]
    two.run.say("go")
    assert end_of(two.process)[0] == 0
    alive = most = 0
    for line in two.happened:
        alive += 1 if line.startswith("start") else -1
        most = max(most, alive)
    assert most == 2
    assert sorted(two.starts()) == [0, 1, 2, 3]


def test_a_run_that_asks_for_it_goes_to_the_end_of_the_queue(queue: Queue) -> None:
    one = queue(["75", "0"], ["0"], ["0"])
    assert end_of(one.process)[0] == 0
    assert one.starts() == [0, 1, 2, 0]


def test_a_run_is_started_as_often_as_it_asks_and_is_told_how_often_that_was(queue: Queue) -> None:
    one = queue([*["75"] * 9, "0"])
    assert end_of(one.process)[0] == 0
    assert one.starts() == [0] * 10
    jobs = [(one.home / f"start-0-{count}").read_text().split()[0] for count in range(10)]
    assert jobs == [f"{one.process.pid}_0"] * 10


def test_a_run_whose_supervisor_was_killed_is_started_again(queue: Queue) -> None:
    one = queue(["killed", "killed", "0"])
    assert end_of(one.process)[0] == 0
    assert one.starts() == [0, 0, 0]


@pytest.mark.parametrize("word", ["idle", "stillborn"])
def test_a_run_whose_supervisors_never_get_as_far_as_an_attempt_is_given_up(queue: Queue, word: str) -> None:
    two = queue([word] * 9, ["0"])
    assert end_of(two.process)[0] == 9
    assert two.starts().count(0) == 5
    assert two.starts().count(1) == 1
    pauses = [line.rsplit(" ", 2)[1] for line in two.log.splitlines() if "again in" in line]
    assert pauses == ["0.01", "0.02", "0.04", "0.08"]


def test_of_a_run_that_was_given_up_status_says_so_and_where_to_look(queue: Queue) -> None:
    one = queue(["idle"] * 9)
    assert end_of(one.process)[0] == 9
    log = one.run.folder.supervisor_log()
    assert f"given up: 5 starts in a row led to no attempt, the last ended with exit code -9; see {log}" in one.log
    (summary,) = summarize_submission(one.run.folder.submission)
    assert summary.state == "lost"
    assert f"the last line of {log}: " in summary.last_word
    assert "given up: 5 starts in a row" in summary.last_word


def test_a_run_that_was_given_up_is_not_taken_for_waiting_while_its_queue_goes_on_with_others(queue: Queue) -> None:
    two = queue(["idle"] * 9, ["waits"], parallelism=2)
    job_id = f"{two.process.pid}:{start_ticks(two.process.pid)}"
    two.run.operator(
        ev.Submitted(runs=(0, 1), cluster="local"), ev.OperatorOutcome(ok=True, job_id=job_id, message="submitted")
    )
    wait_until(lambda: "given up" in two.log, "the first run is given up")
    wait_until(two.run.folder.given_up.exists, "the queue leaves word")
    jobs = Jobs(two.run.folder.submission)
    assert [jobs.of(run, History()).live for run in (0, 1)] == [False, True]
    two.run.say("go")
    assert end_of(two.process)[0] == 9


def test_only_starts_in_a_row_that_lead_nowhere_count(queue: Queue) -> None:
    one = queue([*["idle"] * 4, "killed", *["idle"] * 4, "75", "stillborn", "0"])
    assert end_of(one.process)[0] == 0
    assert len(one.starts()) == 12


def test_while_a_run_pauses_others_start_and_a_stop_is_heard_at_once(queue: Queue) -> None:
    two = queue(["idle", "0"], ["0", "0"], pause_s=1000)
    children = Path(f"/proc/{two.process.pid}/task/{two.process.pid}/children")
    # Not only said its last word: a stop would still reach it, and be how it ended.
    wait_until(lambda: "end 1" in two.happened and not children.read_text(), "the other run went on, and ended")
    two.process.send_signal(signal.SIGTERM)
    assert end_of(two.process, limit_s=5)[0] == 0
    assert two.starts() == [0, 1]


@pytest.mark.parametrize("word", ["idle", "killed", "75"])
def test_a_run_that_was_cancelled_is_not_started_again(queue: Queue, word: str) -> None:
    one = queue([word, "0"], ["waits"], ["0"])
    wait_until(lambda: one.starts()[-1:] == [1], "the first run waits for its next start")
    one.run.cancel()
    one.run.say("go")
    assert end_of(one.process)[0] == 143
    assert one.starts() == [0, 1, 2]
    assert "run 0: cancelled by a person; not started" in one.log


def test_a_supervisor_that_crashed_is_not_taken_for_one_that_decided(queue: Queue) -> None:
    one = queue(["crashes", "1", "0"])
    assert end_of(one.process)[0] == 1
    assert one.starts() == [0, 0]


@pytest.mark.parametrize("code", ["1", "2", "3", "143"])
def test_no_other_exit_code_starts_a_run_again(queue: Queue, code: str) -> None:
    one = queue([code, "0"], ["0"])
    assert end_of(one.process)[0] == int(code)
    assert one.starts() == [0, 1]


def test_a_stop_reaches_every_supervisor_and_nothing_is_started_after_it(queue: Queue) -> None:
    two = queue(["waits", "0"], ["waits", "0"], ["0"], parallelism=2)
    wait_until(lambda: len(two.starts()) == 2, "two runs are started")
    two.process.send_signal(signal.SIGTERM)
    assert end_of(two.process)[0] == 143
    assert sorted(two.happened[2:]) == ["end 0", "end 1"]


def test_a_run_whose_supervisor_was_killed_is_not_started_again_after_a_stop(queue: Queue) -> None:
    one = queue(["waits", "0"])
    wait_until(lambda: one.starts() == [0], "the run is started")
    pid = int((one.home / "start-0-0").read_text().split()[1])
    # Frozen, so that the queue learns of both at once.
    one.process.send_signal(signal.SIGSTOP)
    os.kill(pid, signal.SIGKILL)
    one.process.send_signal(signal.SIGTERM)
    one.process.send_signal(signal.SIGCONT)
    assert end_of(one.process)[0] == 9
    assert one.starts() == [0]


@pytest.mark.parametrize("number", [signal.SIGUSR2, signal.SIGCONT], ids=lambda number: number.name)
def test_the_signals_of_submitit_mean_nothing(queue: Queue, number: signal.Signals) -> None:
    one = queue(["waits"])
    wait_until(lambda: one.starts() == [0], "the run is started")
    one.process.send_signal(number)
    one.run.say("go")
    assert end_of(one.process)[0] == 0


def test_a_journal_that_can_not_be_read_does_not_end_the_other_runs(queue: Queue) -> None:
    two = queue(["waits"], ["0"], parallelism=1)
    wait_until(lambda: two.starts() == [0], "the first run is started")
    (two.run.folder.journal / "claim-0009.jsonl").mkdir()
    two.run.say("go")
    wait_until(lambda: "end 1" in two.happened, "the other run went on")
    (two.run.folder.journal / "claim-0009.jsonl").rmdir()
    end_of(two.process)
    assert "run 0: can't read its journal" in two.log


def test_real_supervisors_bring_a_run_through_its_incidents(scripted_run: Callable[..., ScriptedRun]) -> None:
    run = scripted_run(
        {"do": "loss", "step": 5, "onset": 4}, {"do": "node_lost", "step": 9}, {"do": "crash", "step": 11}
    )
    script = str(Path(__file__).with_name("run_queue.py"))
    process = run.start_command([script, str(run.folder.submission.path), "1", "[0]"])
    assert end_of(process)[0] == 0
    assert [a.ended.cause for a in run.history.attempts if a.ended] == ["decided", "node", "crash", "finished"]
    assert [c.request.restart_count for c in run.history.claims] == [0, 1, 2, 3]
    assert {c.request.job_id for c in run.history.claims} == {f"{process.pid}_0"}
    log = run.folder.supervisor_log().read_text()
    assert "launch: first start" in log
    assert "stop: finished" in log
    run.check()


def test_a_stop_of_the_queue_stops_real_ranks_cleanly(scripted_run: Callable[..., ScriptedRun]) -> None:
    run = scripted_run({"do": "wait", "step": 6})
    script = str(Path(__file__).with_name("run_queue.py"))
    process = run.start_command([script, str(run.folder.submission.path), "1", "[0]"])
    run.wait_for_word("waiting at 6")
    process.send_signal(signal.SIGTERM)
    assert end_of(process)[0] == 143
    assert [e.step for e in run.events(ev.StopAgreed)] == [6]
    run.check()


def test_runs_whose_queue_is_killed_stop_cleanly_and_can_be_sent_again(
    scripted_run: Callable[..., ScriptedRun],
) -> None:
    run = scripted_run({"do": "wait", "step": 6})
    script = str(Path(__file__).with_name("run_queue.py"))
    process = run.start_command([script, str(run.folder.submission.path), "1", "[0]"])
    run.wait_for_word("waiting at 6")
    process.kill()
    assert end_of(process)[0] == -9
    wait_until(lambda: marked_processes(run.mark) == [], "all are gone")
    assert [e.outcome for e in run.events(ev.ClaimEnded)] == ["stopped"]
    assert run.saved()[-1] == 6
    run.resubmit()
    assert run.supervise() == 0
    run.check()


def test_a_supervisor_that_fails_before_every_attempt_does_not_start_for_ever(
    scripted_run: Callable[..., ScriptedRun],
) -> None:
    run = scripted_run()
    # No supervisor can list the checkpoints, so each crashes between its claim and the first attempt.
    run.folder.checkpoints.rmdir()
    run.folder.checkpoints.touch()
    script = str(Path(__file__).with_name("run_queue.py"))
    process = run.start_command([script, str(run.folder.submission.path), "1", "[0]"])
    wait_until(lambda: len(run.history.claims) >= 2, "a second supervisor was started")
    run.cancel()
    assert end_of(process)[0] == 143
    assert len(run.history.claims) <= 3
