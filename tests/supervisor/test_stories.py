from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from supervisor.harness import ScriptedRun, end_of, wait_until

from hpc_resume.cluster.processes import is_running, node_name
from hpc_resume.journal.metrics import read_rows
from hpc_resume.recovery import events as ev

Make = Callable[..., ScriptedRun]


def test_a_run_without_trouble_finishes_in_one_attempt(scripted_run: Make) -> None:
    run = scripted_run()
    assert run.supervise() == 0
    assert run.steps(1) == list(range(1, 13))
    assert [e.cause for e in run.events(ev.AttemptEnded)] == ["finished"]
    assert [e.outcome for e in run.events(ev.ClaimEnded)] == ["finished"]
    run.check()


def test_a_supervisor_of_a_finished_run_starts_nothing(scripted_run: Make) -> None:
    run = scripted_run()
    assert [run.supervise(), run.supervise()] == [0, 0]
    assert len(run.history.attempts) == 1
    run.check()


def test_a_crash_requeues_and_the_next_claim_goes_on_from_the_newest_checkpoint(scripted_run: Make) -> None:
    run = scripted_run({"do": "crash", "step": 8})
    assert run.supervise() == 75
    assert run.supervise() == 0
    first, second = run.history.attempts
    assert first.ended is not None
    assert second.resumed is not None
    assert (first.ended.cause, first.ended.message) == ("crash", "rank 0: RuntimeError: scripted crash")
    assert second.resumed.step == 6
    assert run.steps(2) == list(range(7, 13))
    assert not run.history.rewinds[-1].perturb
    run.check()


def test_a_loss_incident_requeues_and_goes_back_to_before_its_onset_with_a_new_order(scripted_run: Make) -> None:
    run = scripted_run({"do": "loss", "step": 9, "onset": 8})
    assert [run.supervise(), run.supervise()] == [75, 0]
    first, second = run.history.attempts
    assert first.ended is not None
    assert second.resumed is not None
    assert first.ended.cause == "decided"
    assert second.resumed.step == 6
    assert first.started.data_seed != second.started.data_seed
    suspect = run.events(ev.CheckpointQuarantined)
    assert [(e.name[:14], e.reason) for e in suspect] == [("step-000000008", "suspect")]
    assert (run.folder.checkpoints / f"quarantined.{suspect[0].name}").is_dir()
    run.check()


def test_a_loss_incident_about_which_rank_0_could_not_decide_any_more_is_decided_by_the_supervisor(
    scripted_run: Make,
) -> None:
    run = scripted_run({"do": "loss_undecided", "step": 9, "onset": 8})
    assert [run.supervise(), run.supervise()] == [75, 0]
    assert [d.rule for d in run.history.decisions] == ["first start", "loss incident", "finished"]
    resumed = run.history.attempts[1].resumed
    assert resumed is not None
    assert resumed.step == 6
    run.check()


def test_silent_ranks_leave_their_stacks_in_the_log_and_are_killed(scripted_run: Make) -> None:
    run = scripted_run({"do": "hang", "step": 6}, hang_min_s=0.5)
    assert run.supervise() == 75
    assert [e.cause for e in run.events(ev.AttemptEnded)] == ["hang"]
    stacks = run.folder.log(1, 0).read_text()
    assert "most recent call first" in stacks
    assert "scripted_worker.py" in stacks
    assert run.supervise() == 0
    run.check()


def test_one_silent_rank_of_two_that_does_not_hold_up_the_others_is_no_hang(scripted_run: Make) -> None:
    run = scripted_run({"do": "wait", "step": 6}, ranks=2, hang_min_s=0.3)
    supervisor = run.start()
    run.wait_for_word("waiting at 6")
    rows = len(read_rows(run.folder.metrics(1)))
    wait_until(lambda: len(read_rows(run.folder.metrics(1))) > rows + 50, "half a second of heartbeats")
    run.say("go")
    assert end_of(supervisor)[0] == 0
    run.check()


def test_a_supervisor_that_is_asked_to_stop_has_the_workers_save_and_stays_stopped(scripted_run: Make) -> None:
    run = scripted_run({"do": "wait", "step": 6})
    supervisor = run.start()
    run.wait_for_word("waiting at 6")
    supervisor.send_signal(signal.SIGTERM)
    assert end_of(supervisor)[0] == 143
    assert [(e.step, e.checkpoint) for e in run.events(ev.StopAgreed)] == [(6, "step-000000006.s000003")]
    assert [e.cause for e in run.events(ev.AttemptEnded)] == ["terminated"]
    assert [e.outcome for e in run.events(ev.ClaimEnded)] == ["stopped"]
    assert run.supervise() == 143
    assert len(run.history.attempts) == 1
    run.check()


def test_a_stopped_run_that_is_sent_again_goes_on_where_it_stopped(scripted_run: Make) -> None:
    run = scripted_run({"do": "wait", "step": 5})
    supervisor = run.start()
    run.wait_for_word("waiting at 5")
    supervisor.send_signal(signal.SIGTERM)
    end_of(supervisor)
    run.resubmit()
    assert run.supervise() == 0
    assert run.steps(1) == [1, 2, 3, 4, 5]
    assert run.steps(2) == list(range(6, 13))
    assert run.history.branch == 0
    run.check()


def test_ranks_that_do_not_leave_when_asked_are_ended_after_the_grace_time(scripted_run: Make) -> None:
    run = scripted_run({"do": "hang", "step": 6}, stop_grace_s=0.3)
    supervisor = run.start()
    wait_until(lambda: run.steps(1)[-1:] == [5], "step 5")
    supervisor.send_signal(signal.SIGTERM)
    assert end_of(supervisor)[0] == 143
    ended = run.events(ev.AttemptEnded)
    assert [e.cause for e in ended] == ["terminated"]
    assert "nothing could be saved" in ended[0].message
    assert run.saved() == [2, 4]
    run.check()


def test_a_rank_that_was_asked_while_it_was_starting_still_hears_it(scripted_run: Make) -> None:
    run = scripted_run({"do": "start_late", "step": 0}, {"do": "wait", "step": 1})
    supervisor = run.start()
    run.wait_for_word("starting")
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.stderr is not None
    assert any("asking the workers to leave" in line for line in iter(supervisor.stderr.readline, ""))
    run.say("begin")
    assert end_of(supervisor)[0] == 143
    assert [e.step for e in run.events(ev.StopAgreed)] == [1]
    run.check()


def test_a_cancelled_run_is_dead_within_seconds_and_stays_cancelled(scripted_run: Make) -> None:
    run = scripted_run({"do": "hang", "step": 6})
    supervisor = run.start()
    wait_until(lambda: run.steps(1)[-1:] == [5], "step 5")
    (rank,) = run.ranks(1)
    run.cancel()
    wait_until(lambda: not is_running(rank["pid"], rank["start_ticks"]), "the rank is gone", limit_s=3)
    assert end_of(supervisor)[0] == 143
    assert [e.outcome for e in run.events(ev.ClaimEnded)] == ["cancelled"]
    assert run.supervise() == 143
    assert len(run.history.attempts) == 1
    run.check()


def test_a_run_that_was_cancelled_while_it_waited_never_starts(scripted_run: Make) -> None:
    run = scripted_run()
    run.cancel()
    assert run.supervise() == 143
    assert run.history.attempts == ()
    run.check()


def test_a_cancelled_run_comes_back_when_a_person_brings_it_back(scripted_run: Make) -> None:
    run = scripted_run({"do": "hang", "step": 6})
    supervisor = run.start()
    wait_until(lambda: run.steps(1)[-1:] == [5], "step 5")
    run.cancel()
    end_of(supervisor)
    run.resubmit(cancelled=True)
    assert run.supervise() == 0
    assert run.steps(2) == list(range(5, 13))
    run.check()


def test_the_same_crash_without_progress_stops_the_run(scripted_run: Make) -> None:
    run = scripted_run({"do": "crash", "step": 8, "times": 9})
    assert run.supervise_to_the_end() == [75, 1]
    assert run.history.decisions[-1].rule == "same crash twice"
    assert run.supervise() == 1
    assert len(run.history.attempts) == 2
    run.check()


def test_a_spent_budget_stops_the_run_as_failed(scripted_run: Make) -> None:
    crashes = [{"do": "crash", "step": 8, "error": "RuntimeError"}, {"do": "kill", "step": 8}]
    run = scripted_run(*crashes, policy={"crash_budget": 1})
    assert run.supervise_to_the_end() == [75, 1]
    assert run.history.decisions[-1].rule == "budget spent"
    assert [e.outcome for e in run.events(ev.ClaimEnded)] == ["requeued", "failed"]
    run.check()


def test_a_crash_that_comes_back_after_progress_costs_no_more_than_the_first(scripted_run: Make) -> None:
    crashes = [{"do": "crash", "step": step} for step in (3, 5, 7, 9, 11)]
    run = scripted_run(*crashes, policy={"crash_budget": 1})
    assert run.supervise_to_the_end() == [75] * 5 + [0]
    run.check()


def test_a_run_out_of_time_saves_and_goes_on_in_its_next_job_as_if_nothing_had_been(scripted_run: Make) -> None:
    run = scripted_run({"do": "wait", "step": 5})
    clock = run.folder.submission.path / "clock"
    clock.write_text("100000")
    supervisor = run.start(seconds_left=str(clock))
    run.wait_for_word("waiting at 5")
    (clock.parent / "clock.new").write_text("100")
    (clock.parent / "clock.new").rename(clock)
    assert end_of(supervisor)[0] == 75
    assert [e.cause for e in run.events(ev.AttemptEnded)] == ["deadline"]
    assert run.supervise() == 0
    assert run.steps(1) + run.steps(2) == list(range(1, 13))
    assert {a.started.data_seed for a in run.history.attempts} == {0}
    assert dict(run.history.used) == {"idle": 1}
    run.check()


@pytest.mark.parametrize(
    ("error", "step", "codes", "cause"),
    [
        ("TrainerError", -1, [1], "input"),
        ("TrainerError", 3, [75, 1], "crash"),
        ("MemoryError", 3, [75, 1], "out_of_memory"),
    ],
    ids=["bad input at the start", "what looks like bad input later on", "out of memory"],
)
def test_what_starting_again_does_not_mend_fails(
    scripted_run: Make, error: str, step: int, codes: list[int], cause: str
) -> None:
    run = scripted_run({"do": "crash", "step": step, "error": error, "times": 9})
    assert run.supervise_to_the_end() == codes
    assert {e.cause for e in run.events(ev.AttemptEnded)} == {cause}
    run.check()


def test_a_rank_that_can_not_even_say_why_it_failed_leaves_all_the_same(scripted_run: Make) -> None:
    run = scripted_run({"do": "crash_on_full_disk", "step": 5})
    assert run.supervise() == 75
    assert [e.cause for e in run.events(ev.AttemptEnded)] == ["crash"]
    assert run.supervise() == 0
    run.check()


def test_the_rank_that_was_killed_is_named_and_not_the_one_that_lost_its_peer(scripted_run: Make) -> None:
    # Not before: the launcher asks the others to leave as soon as one is gone.
    kill = {"do": "kill", "step": 5, "rank": 1, "when": "about to lose a peer"}
    run = scripted_run({"do": "lose_peer", "step": 5, "peer": 1}, kill, ranks=2)
    assert run.supervise() == 75
    (ended,) = run.events(ev.AttemptEnded)
    assert (ended.cause, ended.rank, ended.node) == ("crash", 1, node_name())
    assert ended.message == f"rank 1 on {node_name()} was killed (exit code 1)"
    assert run.supervise() == 0
    run.check()


def test_a_lost_node_is_found_by_the_next_claim_and_gives_a_new_order(scripted_run: Make) -> None:
    run = scripted_run({"do": "node_lost", "step": 5})
    assert run.supervise() == -9
    assert run.supervise() == 0
    first, second = run.history.attempts
    assert first.ended is not None
    assert second.resumed is not None
    assert (first.ended.cause, first.ended.found_later) == ("node", True)
    assert second.resumed.step == 4
    assert first.started.data_seed != second.started.data_seed
    assert len(run.events(ev.ClaimLost)) == 1
    run.check()
