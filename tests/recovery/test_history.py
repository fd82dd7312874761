"""What a run's events add up to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hpc_resume.recovery import History, Policy, decide, fold
from hpc_resume.recovery import events as ev

Told = Callable[..., Any]


def test_nothing_happened_yet() -> None:
    history = fold([])
    assert history == History()
    assert (history.next_decision, history.next_attempt) == (1, 1)
    assert history.stop is None
    assert not history.resubmitted


def test_suspects_are_set_aside_by_name_and_not_forgotten(told: Told) -> None:
    story = told("10+ 20 30 40 loss@33")
    history = story.history
    assert [c.name for c in history.lineage] == story.on_disk[:1]
    assert history.set_aside == dict.fromkeys(story.on_disk[1:], "suspect")
    assert set(history.known) == set(story.on_disk)
    assert history.quarantined == frozenset()


def test_set_aside_is_not_yet_renamed(told: Told) -> None:
    story = told("10+ 20 30 loss@23")
    story.record(ev.CheckpointQuarantined(name=story.on_disk[1], reason="suspect"))
    assert story.history.quarantined == {story.on_disk[1]}
    assert set(story.history.set_aside) == set(story.on_disk[1:])


def test_the_first_reason_to_set_aside_stays(told: Told) -> None:
    story = told("10+ 20 loss@23")
    story.record(ev.CheckpointQuarantined(name=story.on_disk[1], reason="something else"))
    assert story.history.set_aside[story.on_disk[1]] == "suspect"


def test_a_rejected_checkpoint_is_set_aside_with_its_reason(told: Told) -> None:
    story = told("10 20 reject")
    assert story.history.set_aside == {story.on_disk[1]: "rejected: digest differs"}
    assert story.history.rejected == (story.on_disk[1],)


def test_a_checkpoint_that_is_recorded_twice_counts_once(told: Told) -> None:
    story = told("10 20")
    before = story.history.lineage
    story.record(ev.CheckpointAdopted(checkpoint=before[-1]))
    assert story.history.lineage == before


def test_the_lineage_is_in_the_order_of_steps_whatever_the_order_of_records(told: Told) -> None:
    story = told("")
    early, late = story.checkpoint(10), story.checkpoint(20)
    for checkpoint in (late, early):
        story.record(ev.CheckpointAdopted(checkpoint=checkpoint))
    assert story.history.lineage == (early, late)


def test_a_checkpoint_of_an_abandoned_branch_is_no_way_on(told: Told) -> None:
    story = told("10+ 20 loss@18")
    left_over = story.checkpoint(25, branch=0)
    story.record(ev.CheckpointAdopted(checkpoint=left_over))
    assert story.history.branch == 1
    assert left_over not in story.history.lineage
    assert story.history.set_aside[left_over.name] == "of an abandoned branch"


def test_a_checkpoint_once_set_aside_never_comes_back(told: Told) -> None:
    story = told("10+ 20 loss@18")
    suspect = story.history.known[story.on_disk[1]]
    story.record(ev.CheckpointAdopted(checkpoint=suspect))
    story.record(ev.CheckpointCertified(name=suspect.name, step=40))
    assert suspect not in story.history.lineage


def test_a_recorded_checkpoint_that_one_listing_lacks_is_not_given_up(told: Told) -> None:
    # Its record was read, so it was committed; whether it is still there is for the reconciliation to find out.
    story = told("10 20")
    story.on_disk.remove(story.history.lineage[-1].name)
    story.claim()
    assert [c.step for c in story.history.lineage] == [10, 20]


def test_a_rollback_that_died_with_its_processes_does_not_hide_how_they_ended(told: Told) -> None:
    story = told("10 20 reject")
    assert story.last.action == "rollback"
    story.record(story.ended("hang"))
    assert story.history.pending is None
    assert isinstance(story.history.undecided, ev.AttemptEnded)


def test_a_cancel_keeps_the_suspects_of_an_incident_that_nobody_decided_on(told: Told) -> None:
    story = told("10+ 20+ 30")
    story.record(story.incident(25))
    story.record(ev.CancelRequested(runs=(0,), operator=1))
    decision = decide(story.policy, story.history, None)
    story.record(ev.Decided(decision=decision))
    assert [c.step for c in story.history.lineage] == [10, 20]


CANCELS: dict[str, ev.Event] = {
    "by a command": ev.CancelRequested(runs=(0,), operator=1),
    "in Slurm": ev.JobCancelled(claim=1, message="the job was cancelled in Slurm"),
}


@pytest.mark.parametrize("cancel", CANCELS.values(), ids=CANCELS)
def test_what_an_undecided_incident_made_suspect_is_out_of_reach_of_whoever_lifts_the_cancel(
    cancel: ev.Event, told: Told
) -> None:
    story = told("10+ 20+ 30")
    story.record(story.incident(28))
    story.record(cancel)
    story.record(story.ended("cancelled"))
    decision = decide(story.policy, story.history, story.history.undecided)
    assert (decision.rule, decision.outcome, decision.suspect_after) == ("cancelled", "cancelled", 23)
    story.record(ev.Decided(decision=decision))
    again = story.resubmit()
    assert not story.history.cancelled
    assert again.plan is not None
    assert (again.rule, again.plan.step, again.plan.perturb) == ("resubmitted", 20, True)


def test_a_cancellation_in_slurm_ends_the_run_and_is_no_command_that_others_must_have_seen() -> None:
    cancelled = ev.JobCancelled(claim=1, message="")
    assert fold([cancelled]).cancelled_by == 0
    # Of two the one that is harder to lift stays in force.
    command = ev.CancelRequested(runs=(0,), operator=3)
    assert fold([command, cancelled]).cancelled_by == fold([cancelled, command]).cancelled_by == 3


@pytest.mark.parametrize(
    ("lifts", "cancelled"), [(None, True), (0, False), (4, False)], ids=["plain", "first", "later"]
)
def test_only_who_lifts_cancellations_lifts_one_in_slurm(lifts: int | None, cancelled: bool) -> None:
    asked = ev.ResubmitRequested(runs=(0,), after={"0": 1}, cluster="slurm", lifts=lifts)
    assert fold([ev.JobCancelled(claim=1, message=""), asked]).cancelled is cancelled


def test_a_resubmission_lifts_the_cancellation_in_slurm_that_it_knew_of_and_no_later_one(told: Told) -> None:
    # Files of commands are read before those of supervisors, whose records alone say what they had seen.
    story = told("10 scancel cancelled")
    asked = ev.ResubmitRequested(runs=(0,), after={"0": story.last.number}, cluster="slurm", lifts=0)
    assert not fold([asked, *story.events]).cancelled
    story.record(asked)
    story.claim()
    story.decide(None)
    assert story.last.rule == "resubmitted"
    again = ev.JobCancelled(claim=2, message="the job was cancelled in Slurm")
    assert fold([*story.events, again]).cancelled
    events = [event for event in story.events if event is not asked]
    assert fold([asked, *events, again]).cancelled
    assert not fold([asked, *events]).cancelled


def test_a_resubmission_lifts_a_cancellation_about_which_nobody_could_decide_any_more(told: Told) -> None:
    story = told("10 scancel")
    asked = ev.ResubmitRequested(runs=(0,), after={"0": story.last.number}, cluster="slurm", lifts=0)
    assert not fold([asked, *story.events]).cancelled
    assert not fold([*story.events, asked]).cancelled
    plain = ev.ResubmitRequested(runs=(0,), after={"0": story.last.number}, cluster="slurm")
    assert fold([plain, *story.events]).cancelled


def test_what_an_older_claim_commits_unseen_is_void(told: Told) -> None:
    story = told("10")
    story.claim()
    assert story.history.is_void("step-000000020.s000002", claim=1)
    assert not story.history.is_void("step-000000020.s000002", claim=2)


def test_a_run_that_stops_for_its_loss_leaves_no_suspect_to_resume_from(told: Told) -> None:
    story = told("10+ 20+ loss@25 loss@25 loss@25 loss@25 20 24 loss@25")
    assert story.last.action == "stop"
    assert all(c.step < 24 for c in story.history.lineage)
    decision = story.resubmit()
    assert decision.plan is not None
    assert decision.plan.step < 24
    assert decision.plan.perturb


@pytest.mark.parametrize("word", ["crash:A", "loss@15", "preempt"])
def test_a_decision_to_requeue_is_pending_until_the_next_start(word: str, told: Told) -> None:
    story = told("10")
    event = story.incident(15) if word == "loss@15" else story.ended("crash" if word == "crash:A" else "preempted")
    story.record(event)
    decision = decide(story.policy, story.history, event)
    story.record(ev.Decided(decision=decision))
    assert story.history.undecided is None
    story.leave()
    story.record(ev.ClaimEnded(claim=1, outcome="requeued", message=""))
    story.claim()
    assert story.history.pending == decision
    assert story.history.undecided is None
    story.launch()
    assert story.history.pending is None
    assert story.history.attempts[-1].decision == decision.number


def test_a_rollback_is_pending_until_training_goes_on(told: Told) -> None:
    story = told("10 20")
    event = ev.CheckpointRejected(name=story.on_disk[1], reason="digest differs")
    story.record(event)
    decision = decide(story.policy, story.history, event)
    story.record(ev.Decided(decision=decision))
    assert story.history.pending == decision
    story.resumed()
    assert story.history.pending is None


def test_training_that_goes_on_has_not_carried_out_a_requeue(told: Told) -> None:
    story = told("10")
    event = story.incident(15)
    story.record(event)
    story.record(ev.Decided(decision=decide(story.policy, story.history, event)))
    story.resumed()
    assert story.history.pending == story.last


def test_a_stop_is_pending_until_its_claim_ends_and_binding_after_that(told: Told) -> None:
    story = told("10")
    event = story.ended("input")
    story.record(event)
    decision = decide(story.policy, story.history, event)
    story.record(ev.Decided(decision=decision))
    assert story.history.pending == story.history.stop == decision
    story.record(ev.ClaimEnded(claim=1, outcome="failed", message=""))
    assert story.history.pending is None
    assert story.history.stop == decision


def test_to_know_of_a_failed_save_leaves_nothing_to_do(told: Told) -> None:
    history = told("10 unsaved").history
    assert history.pending is None
    assert history.undecided is None
    assert history.attempts[-1].ended is None


def test_a_resubmission_lifts_only_the_stop_that_it_knew_of(told: Told) -> None:
    story = told("10 input")
    story.record(ev.ResubmitRequested(runs=(0,), after={"0": story.last.number}, cluster="local"))
    assert story.history.resubmitted
    assert story.history.stop is None
    story.claim()
    story.decide(None)
    story.tell("input")
    assert story.history.stop == story.last
    assert not story.history.resubmitted


def test_an_older_resubmission_does_not_bring_back_an_older_bound(told: Told) -> None:
    story = told("10 input resubmit")
    bound = story.history.binding_after
    story.record(ev.ResubmitRequested(runs=(0,), after={"0": 1}, cluster="local"))
    assert story.history.binding_after == bound


@pytest.mark.parametrize("run", [0, 1])
def test_an_operators_word_is_only_for_the_runs_that_it_names(run: int) -> None:
    events = [ev.CancelRequested(runs=(1, 2))]
    assert fold(events, run).cancelled is (run == 1)
    lifted = fold([*events, ev.ResubmitRequested(runs=(1,), after={"1": 4}, cluster="local", lifts=1)], run)
    assert not lifted.cancelled
    assert lifted.binding_after == (4 if run == 1 else 0)


@pytest.mark.parametrize("lifts", [None, 1], ids=["not asked to", "seen before the cancel"])
def test_a_resubmission_does_not_lift_a_cancel_that_it_had_not_seen(lifts: int | None) -> None:
    events = [
        ev.CancelRequested(runs=(0,), operator=2),
        ev.ResubmitRequested(runs=(0,), after={"0": 4}, cluster="local", lifts=lifts),
    ]
    assert fold(events, 0).cancelled


def test_a_claim_is_known_by_how_it_went(new_story: Told) -> None:
    story = new_story()
    for _ in range(4):
        story.claim()
    ends = [
        ev.ClaimEnded(claim=1, outcome="requeued", message=""),
        ev.ClaimLost(claim=2, reason=""),
        ev.ClaimRefused(claim=3, owner=1, reason=""),
    ]
    for end in ends:
        story.record(end)
    assert [c.ended for c in story.history.claims] == [*ends, None]
    assert all(c.opened for c in story.history.claims)


def test_a_claim_that_was_only_requested_is_not_open(new_story: Told) -> None:
    story = new_story()
    story.claim()
    assert not fold(story.events[:1]).claims[0].opened


def test_an_attempt_gathers_what_is_said_of_it(told: Told) -> None:
    story = told("10")
    ready = ev.WorkersReady(attempt=1, world_size=2, num_samples=100)
    stop = ev.StopAgreed(attempt=1, step=12, checkpoint=None)
    for event in (ready, stop, story.ended("preempted")):
        story.record(event)
    attempt = story.history.attempts[0]
    assert (attempt.ready, attempt.stop, attempt.ended) == (ready, stop, story.ended("preempted"))
    assert attempt.resumed is not None
    assert story.history.next_attempt == 2


def test_what_is_only_for_the_report_is_kept_and_decides_nothing(told: Told) -> None:
    story = told("10+ 20")
    near_miss = ev.NearMiss(attempt=1, detector="spike", onset_step=21, step=22, message="")
    differs = ev.ReplayDiffers(attempt=1, step=22, before=1.0, now=1.5)
    fault = ev.FaultInjected(attempt=1, index=0, fault="kill", step=23)
    event = story.ended("node")
    expected = decide(story.policy, story.history, event)
    for record in (near_miss, differs, fault, ev.StepSkipped(attempt=1, step=23), ev.Disagreement(message="sacct")):
        story.record(record)
    history = story.history
    assert (history.near_misses, history.replay_differences, history.faults) == ((near_miss,), (differs,), (fault,))
    assert (history.skipped_steps, history.disagreements) == (1, ("sacct",))
    assert decide(story.policy, history, event) == expected


@pytest.mark.parametrize(
    "event",
    [
        ev.Unknown(kind="weather_changed", data={"to": "rain"}),
        ev.Submitted(runs=(0,), cluster="local"),
        ev.OperatorOutcome(ok=True, job_id="7", message=""),
        ev.CancelRequested(runs=(5,)),
        ev.ResubmitRequested(runs=(5,), after={"5": 9}, cluster="local"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_does_not_concern_the_run_changes_nothing(event: ev.Event, told: Told) -> None:
    story = told("10+ 20")
    before = story.history
    story.record(event)
    assert story.history == before


def test_every_way_back_is_kept_as_a_rewind(told: Told) -> None:
    history = told("10+ 20+ 30 loss@33 crash:A node", Policy(perturb_on=("loss",))).history
    assert [(r.position, r.number, r.perturb) for r in history.rewinds] == [
        (0, 1, False),
        (160, 2, True),
        (160, 3, False),
        (160, 4, False),
    ]


def test_a_crash_before_any_checkpoint_is_told_from_one_after_it(told: Told) -> None:
    history = told("crash:A 10 crash:A").history
    assert history.crashes == (("A", "node1", 0), ("A", "node1", 10))


@pytest.mark.parametrize("word", ["crash:A", "preempt", "loss@15", "node"])
def test_a_learning_rate_once_cut_stays_cut(word: str, told: Told) -> None:
    story = told("10+ preempt")
    plan = story.last.plan
    cut = replace(story.last, number=story.last.number + 1, plan=replace(plan, lr_factor=0.5))
    story.record(ev.Decided(decision=cut))
    story.launch()
    story.tell(word)
    assert story.last.plan.lr_factor == story.history.lr_factor == 0.5


def test_what_a_replaced_claim_wrote_is_void_unless_every_newer_one_saw_it(new_story: Told) -> None:
    story = new_story()
    story.claim()
    story.on_disk = ["a"]
    story.claim()
    story.on_disk = ["a", "b"]
    story.claim()
    history = story.history
    assert not history.is_void("a", claim=1)
    assert history.is_void("b", claim=1)
    assert not history.is_void("b", claim=2)
    assert not history.is_void("c", claim=3)


def test_the_high_water_mark_never_falls(told: Told) -> None:
    history = told("10+ 20+ 30+ loss@35").history
    assert history.high_water_step == 30
    assert told("10+ 20+ 30+ loss@35 loss@18").history.high_water_step == 30


def test_a_deleted_checkpoint_is_no_way_on_and_never_comes_back(told: Told) -> None:
    story = told("10+ 20+ 30")
    first = story.history.lineage[0]
    story.record(ev.CheckpointDeleted(name=first.name, reason="no rewind leads there"))
    story.record(ev.CheckpointAdopted(checkpoint=first))
    assert [c.step for c in story.history.lineage] == [20, 30]
    assert story.history.deleted == {first.name}
    assert story.history.known[first.name] == first


def test_a_deletion_counts_whatever_the_order_of_the_records(told: Told) -> None:
    story = told("")
    checkpoint = story.checkpoint(10)
    story.record(ev.CheckpointDeleted(name=checkpoint.name, reason="no rewind leads there"))
    story.record(ev.CheckpointAdopted(checkpoint=checkpoint))
    assert story.history.lineage == ()
