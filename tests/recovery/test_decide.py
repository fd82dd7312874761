"""What is decided, as tables of runs in a line; the language of the lines is explained in `conftest.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import pytest

from hpc_resume.recovery import RULES, Decision, Plan, Policy, decide
from hpc_resume.recovery import events as ev

Told = Callable[..., Any]

RULE_STORIES = {
    "first start": "",
    "resubmitted": "10 terminate resubmit",
    "loss incident": "10+ 20 loss@33",
    "crash": "10 crash:A",
    "same crash twice": "10 crash:A crash:A",
    "same crash, other node": "10 crash:A/node1? crash:A/node1?",
    "port taken": "10 port",
    "hang": "10 hang",
    "node lost": "10 node",
    "out of memory": "10 oom:A",
    "out of time": "10 deadline",
    "preempted": "10 preempt",
    "asked to stop": "10 terminate",
    "cancelled": "10 cancelled",
    "input": "input",
    "checkpoint rejected": "10 20 reject",
    "no checkpoint left": "10 reject",
    "rehearsal": "10 rehearse@15",
    "save failed": "unsaved",
    "saves keep failing": "unsaved unsaved unsaved unsaved unsaved unsaved",
    "budget spent": "crash:A crash:B crash:C crash:D",
    "finished": "10 finish",
}


def test_every_rule_has_a_story() -> None:
    assert set(RULE_STORIES) == set(RULES)


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_is_reached_and_says_why(rule: str, told: Told) -> None:
    decision = told(RULE_STORIES[rule]).last
    assert decision.rule == rule
    assert len(decision.reason) > 5
    assert "\n" not in decision.reason


RESUME_POINTS = {
    "a loss incident before any checkpoint begins anew": ("loss@7", "requeue to 0: loss incident"),
    "a checkpoint inside the margin is no way back": ("10 loss@14", "requeue to 0: loss incident"),
    "one just outside the margin is": ("10 loss@15", "requeue to 10: loss incident"),
    "certified is preferred to newer candidates": ("10+ 20 loss@33", "requeue to 10: loss incident"),
    "candidates are preferred to the beginning": ("10 20 loss@33", "requeue to 20: loss incident"),
    "the newest certified one before the onset": ("10+ 20+ 30+ loss@33", "requeue to 20: loss incident"),
    "certified after the onset is of no use": ("10 20+ loss@18", "requeue to 10: loss incident"),
    "a crash goes on from the newest, certified or not": ("10+ 20 crash:A", "requeue to 20: crash"),
    "so does a hang": ("10+ 20 hang", "requeue to 20: hang"),
    "so does a lost node": ("10+ 20 node", "requeue to 20: node lost"),
    "so does the wall clock": ("10+ 20 deadline", "requeue to 20: out of time"),
    "so does a preemption": ("10+ 20 preempt", "requeue to 20: preempted"),
    "after a loss incident the suspects stay out of reach": ("10+ 20 loss@18 crash:A", "requeue to 10: crash"),
    "and what was saved on the new branch is used": ("10+ 20 loss@18 20 crash:A", "requeue to 20: crash"),
    "a rejected checkpoint makes way for an older one": ("10 20 30 reject", "rollback to 20: checkpoint rejected"),
    "and that for a still older one": ("10 20 30 reject reject", "rollback to 10: checkpoint rejected"),
    "a rehearsed rollback takes the newest": ("10+ 20 rehearse@25", "rollback to 20: rehearsal"),
    "without any there is nothing to roll back to": ("rehearse@5", "continue: rehearsal"),
    "what was deleted is no reason to begin anew": (
        "10+ 20+ 30+ deleted loss@14",
        "stop failed: no checkpoint left",
    ),
    "what was set aside was no way back, deleted or not": (
        "10+ 20+ loss@3 forgotten loss@3",
        "requeue to 0: loss incident",
    ),
    "a stop spares the last way back where older ones were deleted": (
        "10+ 20+ 30+ deleted loss@14 resubmit",
        "launch to 20: resubmitted",
    ),
    "a rejected certified one too": ("10+ 20+ reject loss@33", "requeue to 10: loss incident"),
}


@pytest.mark.parametrize(("story", "expected"), RESUME_POINTS.values(), ids=RESUME_POINTS)
def test_training_goes_on_from(story: str, expected: str, told: Told, in_short: Callable[[Decision], str]) -> None:
    assert in_short(told(story).last) == expected


def test_the_margin_is_the_policys(told: Told) -> None:
    wide, none = Policy(rollback_margin_steps=15), Policy(rollback_margin_steps=0)
    assert told("10+ 20+ loss@30", wide).last.plan.step == 10
    assert told("10+ 20+ loss@20", none).last.plan.step == 20


def test_a_plan_names_the_checkpoint_and_its_position(told: Told) -> None:
    story = told("10+ 20+ 30 loss@33")
    plan = story.last.plan
    assert (plan.checkpoint, plan.step, plan.position) == (story.on_disk[1], 20, 160)
    assert told("loss@7").last.plan == Plan(checkpoint=None, step=0, position=0, branch=1, perturb=True)


def test_each_repeat_without_progress_goes_deeper(told: Told) -> None:
    story = told("10+ 20+ 30+ 40+ loss@45 loss@45 40+ loss@45 30+ 40+ loss@45")
    assert [d.plan.step for d in story.history.decisions[1:]] == [40, 30, 20, 10]
    assert [d.used for d in story.history.decisions[1:]] == [1, 2, 3, 4]


def test_the_oldest_checkpoint_is_the_deepest_to_go(told: Told) -> None:
    story = told("10+ 20+ loss@26 loss@26 loss@26 loss@26")
    assert [d.plan.step for d in story.history.decisions[1:]] == [20, 10, 10, 10]


STOPS = {
    "the loss budget": ("10+ 20+ loss@25 loss@25 loss@25 loss@25 loss@25", "budget spent"),
    "the crash budget": ("10 crash:A crash:B crash:C crash:D", "budget spent"),
    "hangs count as crashes": ("10 crash:A hang crash:B hang", "budget spent"),
    "hangs alone": ("10 hang hang hang hang", "budget spent"),
    "the node budget": ("10 " + "node " * 11, "budget spent"),
    "preemptions between do not refill it": ("10 hang preempt hang deadline hang preempt hang", "budget spent"),
    "saves in a row": ("10 " + "unsaved " * 6, "saves keep failing"),
    "saves in a row over attempts": ("10 " + "unsaved " * 3 + "crash:A " + "unsaved " * 3, "saves keep failing"),
    "the same crash at the beginning": ("crash:A crash:A", "same crash twice"),
    "the same crash after a checkpoint": ("10 crash:A 20 crash:A crash:A", "same crash twice"),
    "the same crash on two nodes": ("10 crash:A/node1 crash:A/node2", "same crash twice"),
    "the same crash on two nodes, of many": ("10 crash:A/node1? crash:A/node2?", "same crash twice"),
    "the same crash on the only node": ("10 crash:A/node1 crash:A/node1", "same crash twice"),
    "the same crash on one node and then on another": (
        "10 crash:A/node1? crash:A/node1? crash:A/node2?",
        "same crash twice",
    ),
    "out of memory again": ("10 oom:A oom:A", "out of memory"),
    "out of memory again, whatever other nodes there are": ("10 oom:A/node1? oom:A/node1?", "out of memory"),
    "a port that is always taken": ("10 " + "port " * 11, "budget spent"),
    "nothing left to load": ("10 20 reject reject", "no checkpoint left"),
    "bad settings": ("10 input", "input"),
}


@pytest.mark.parametrize(("story", "rule"), STOPS.values(), ids=STOPS)
def test_it_gives_up_for_good(story: str, rule: str, told: Told, in_short: Callable[[Decision], str]) -> None:
    ended = told(story)
    assert in_short(ended.last) == f"stop failed: {rule}"
    assert ended.history.stop == ended.last
    assert not [d for d in ended.history.decisions[:-1] if d.action == "stop"], "it stopped before the last word"


GOES_ON = {
    "the last of the loss budget": ("10+ 20+ loss@25 loss@25 loss@25 loss@25", 4),
    "the last of the crash budget": ("10 crash:A crash:B crash:C", 3),
    "the last of the node budget": ("10 " + "node " * 10, 10),
    "the last of the save budget": ("10 " + "unsaved " * 5, 5),
    "the same crash with a checkpoint between": ("10 crash:A 20 crash:A", 1),
    "another crash": ("10 crash:A crash:B", 2),
    "the same crash on one node, of several": ("10 crash:A/node1? crash:A/node1?", 2),
    "another crash, wherever it is": ("10 crash:A/node1 crash:B/node2", 2),
    "the port again and again": ("10 " + "port " * 10, 10),
    "a taken port between crashes": ("10 crash:A port crash:B", 2),
    "a second hang": ("10 hang hang", 2),
    "out of memory once": ("10 oom:A", 1),
    "out of memory with a checkpoint between": ("10 oom:A 20 oom:A", 1),
    "a committed checkpoint between failed saves": ("unsaved unsaved unsaved unsaved unsaved 10 unsaved", 1),
    "progress refills after crashes": ("10 crash:A crash:B crash:C 20 crash:D", 1),
    "progress refills after lost nodes": ("10 node node 20 node", 1),
    "progress refills after loss incidents": ("10+ 20+ loss@25 loss@25 20+ 30+ loss@35", 1),
    "progress of any kind refills them all": ("10 crash:A crash:B 20 preempt crash:C", 1),
    "an uncertified checkpoint is no progress for the loss": ("10+ 20+ loss@25 30 loss@35", 2),
    "a rewind is no progress": ("10+ 20+ 30+ loss@35 loss@35 loss@35", 3),
    "reaching the same place again is no progress": ("10+ 20+ 30+ loss@35 loss@35 30+ loss@35", 3),
    "neither is it for another kind": ("10+ 20+ crash:A 30 crash:B loss@25 30 crash:C", 2),
    "budgets are counted apart": ("10 crash:A crash:B node hang", 3),
}


@pytest.mark.parametrize(("story", "used"), GOES_ON.values(), ids=GOES_ON)
def test_it_goes_on(story: str, used: int, told: Told) -> None:
    decision = told(story).last
    assert decision.action != "stop"
    assert decision.used == used


def test_the_second_time_on_one_node_that_node_is_avoided_and_no_other(told: Told) -> None:
    first, second = told("10+ 20 crash:A/node3? crash:A/node3?").history.decisions[-2:]
    assert (first.rule, first.action, first.plan.avoid_nodes) == ("crash", "requeue", ())
    assert (second.rule, second.action, second.plan.avoid_nodes) == ("same crash, other node", "requeue", ("node3",))
    assert (second.plan.step, second.plan.perturb, second.budget) == (20, False, "crash")


def test_one_bad_node_after_another_is_avoided_while_there_is_progress(told: Told) -> None:
    story = told("10 crash:A/node1? crash:A/node1? 20 crash:B/node2? crash:B/node2?")
    assert [d.plan.avoid_nodes for d in story.history.decisions[1:]] == [(), ("node1",), (), ("node2",)]


def test_whether_a_node_can_be_avoided_is_asked_at_the_second_time(told: Told) -> None:
    assert told("10 crash:A/node1? crash:A/node1").last.rule == "same crash twice"
    assert told("10 crash:A/node1 crash:A/node1?").last.rule == "same crash, other node"


@pytest.mark.parametrize(
    ("story", "where"),
    [
        ("10 crash:A/node1 crash:A/node2", "on node1 and on node2"),
        ("10 crash:A/node1 crash:A/node1", "and no other node can be had"),
    ],
    ids=["on two nodes", "on one node"],
)
def test_the_same_crash_twice_says_where(story: str, where: str, told: Told) -> None:
    expected = f"the same failure twice since the checkpoint at step 10, {where}: how it ended: crash"
    assert told(story).last.reason == expected


def test_a_taken_port_costs_no_crash_and_no_place_in_the_queue(told: Told) -> None:
    story = told("10 crash:A port")
    assert (story.last.action, story.last.budget, story.last.used) == ("launch", "idle", 1)
    assert story.last.plan.step == 10
    assert [crash[0] for crash in story.history.crashes] == ["A"]
    assert len(story.history.claims) == 2, "it left the allocation"


def test_a_spent_budget_is_named_in_a_sentence(told: Told) -> None:
    decision = told("10 hang hang hang hang").last
    assert decision.reason.startswith("the crash budget is spent (3 in a row without progress); last: ")
    assert (decision.budget, decision.used) == ("crash", 3)


@pytest.mark.parametrize(
    ("budget", "word"), [("loss", "loss@15"), ("crash", "hang"), ("node", "node"), ("save", "unsaved")]
)
def test_a_budget_of_nothing_stops_at_the_first(budget: str, word: str, told: Told) -> None:
    budgets: dict[str, Any] = {f"{budget}_budget": 0}
    policy = Policy(**budgets)
    assert told(f"10 {word}", policy).last.outcome == "failed"
    others = [w for w in ("loss@15", "hang", "node", "unsaved") if w != word]
    assert all(told(f"10 {other}", policy).last.action != "stop" for other in others)


@pytest.mark.parametrize(
    "lap", ["20+ loss@25", "20 crash:A loss@25", "20+ node loss@15", "20 hang loss@15", "20+ 30+ loss@18"]
)
def test_the_same_place_again_and_again_comes_to_an_end(lap: str, told: Told) -> None:
    story = told("10+")
    for _ in range(20):
        story.tell(lap)
        if story.history.stop is not None:
            break
    assert story.history.stop.rule in ("budget spent", "same crash twice")


PERTURB_ON = [(), ("loss",), ("node",), ("loss", "node")]


@pytest.mark.parametrize("perturb_on", PERTURB_ON, ids=lambda causes: "+".join(causes) or "nothing")
def test_only_what_perturb_on_names_changes_the_order(perturb_on: tuple[Any, ...], told: Told) -> None:
    policy = Policy(perturb_on=perturb_on)
    assert told("10+ 20+ loss@25", policy).last.plan.perturb is ("loss" in perturb_on)
    assert told("10 node", policy).last.plan.perturb is ("node" in perturb_on)
    for word in ("crash:A", "preempt", "deadline", "hang", "oom:A", "reject", "terminate resubmit"):
        plan = told(f"10 20 {word}", policy).last.plan
        assert not plan.perturb, word
        assert plan.branch == 0, word


@pytest.mark.parametrize(
    ("story", "perturb_on", "branch"),
    [
        ("10+ 20+ loss@25", ("loss",), 1),
        ("10+ 20+ loss@25", (), 0),
        ("10+ 20+ loss@22", (), 1),
        ("10+ node", ("node",), 1),
        ("10+ node", (), 0),
        ("10+ 20+ loss@22 20+ loss@22", ("loss",), 2),
    ],
)
def test_a_branch_begins_where_the_order_or_the_steps_part(
    story: str, perturb_on: tuple[Any, ...], branch: int, told: Told
) -> None:
    assert told(story, Policy(perturb_on=perturb_on)).last.plan.branch == branch


EVERYTHING = "loss@33 reject unsaved crash:A hang node oom:A preempt deadline terminate input finish"


@pytest.mark.parametrize("word", EVERYTHING.split())
def test_cancelled_beats_everything(word: str, told: Told, in_short: Callable[[Decision], str]) -> None:
    assert in_short(told(f"10+ 20+ cancel {word}").last) == "stop cancelled: cancelled"


def test_a_run_cancelled_before_its_start_does_not_start(new_story: Told) -> None:
    story = new_story()
    story.record(ev.CancelRequested(runs=(0,)))
    assert decide(story.policy, story.history, None).outcome == "cancelled"


@pytest.mark.parametrize("word", EVERYTHING.split())
def test_so_does_a_cancellation_in_slurm(word: str, told: Told, in_short: Callable[[Decision], str]) -> None:
    assert in_short(told(f"10+ 20+ scancel {word}").last) == "stop cancelled: cancelled"


LIFTED = {
    "after a spent budget": "10 hang hang hang hang",
    "after the same crash twice": "10 crash:A crash:A",
    "after a stop that was asked for": "10 terminate",
    "after bad settings": "10 input",
    "after too many failed saves": "10 " + "unsaved " * 6,
    "after a cancel": "10 cancel preempt",
    "after a cancel in Slurm": "10 scancel cancelled",
    "after a cancel in both ways": "10 cancel scancel preempt",
}


@pytest.mark.parametrize("story", LIFTED.values(), ids=LIFTED)
def test_a_resubmission_lifts_a_stop(story: str, told: Told, in_short: Callable[[Decision], str]) -> None:
    run = told(story)
    run.resubmit()
    assert in_short(run.last) == "launch to 10: resubmitted"
    assert run.history.stop is None
    assert run.history.used == {}
    assert not run.last.plan.perturb


@pytest.mark.parametrize("word", ["preempt", "deadline"])
def test_requeues_that_get_no_further_end_and_those_that_do_go_on(word: str, told: Told) -> None:
    assert told(f"10 {f'{word} ' * 10}").last.action == "requeue"
    stuck = told(f"10 {f'{word} ' * 11}")
    assert (stuck.last.action, stuck.last.rule) == ("stop", "budget spent")
    assert told(" ".join(f"{step} {word}" for step in range(10, 400, 10))).last.action == "requeue"


@pytest.mark.parametrize(
    ("story", "again"),
    [
        ("10 hang hang hang hang", "hang hang hang"),
        ("10+ 20+ loss@25 loss@25 loss@25 loss@25 loss@25", "loss@25 loss@25 loss@25 loss@25"),
        ("10 " + "unsaved " * 6, "unsaved " * 5),
        ("10 crash:A crash:A", "crash:A"),
        ("10 oom:A oom:A", "oom:A"),
    ],
    ids=["crash", "loss", "save", "same crash", "out of memory"],
)
def test_a_resubmission_brings_full_budgets(story: str, again: str, told: Told) -> None:
    run = told(story)
    assert run.history.stop is not None
    run.resubmit()
    run.tell(again)
    assert run.history.stop is None
    run.tell(again.split(maxsplit=1)[0])
    assert run.history.stop is not None


def test_a_finished_run_that_is_sent_again_is_still_finished(told: Told, in_short: Callable[[Decision], str]) -> None:
    assert in_short(told("10 finish resubmit").last) == "stop finished: finished"


@pytest.mark.parametrize(
    ("fingerprint", "advice"),
    [
        ("OutOfMemoryError model.py:forward", "smaller micro batches"),
        ("killed for its memory", "checkpoints.mode: sync"),
        ("MemoryError snapshot.py:copy", "checkpoints.mode: sync"),
    ],
)
def test_the_advice_is_about_the_memory_that_was_short(
    fingerprint: str, advice: str, new_story: Callable[[], Any]
) -> None:
    story = new_story().begin()
    for _ in range(2):
        story.happens(story.ended("out_of_memory", fingerprint))
    assert story.last.rule == "out of memory"
    assert advice in story.last.reason


def test_a_drill_changes_neither_budgets_nor_the_measure_of_progress(told: Told) -> None:
    before, after = told("10 crash:A 20").history, told("10 crash:A 20 rehearse@25").history
    assert (before.used, before.high_water_step) == (after.used, after.high_water_step)
    assert after.pending is None


def test_a_run_with_saved_state_never_starts_from_scratch_by_itself(told: Told) -> None:
    for word in ("crash:A", "node", "preempt", "terminate resubmit", "loss@12"):
        story = told(f"10 20 reject {word}")
        assert story.last.action == "stop" or story.last.plan.step == 10, word
    stopped = told("10 20 reject reject")
    assert "nothing is left that is old enough (" in stopped.last.reason
    assert stopped.resubmit().rule == "no checkpoint left"


@pytest.mark.parametrize("cause", ["crash", "hang", "node", "preempted"])
def test_a_loss_incident_that_a_killed_rank_0_left_undecided_is_decided_all_the_same(
    cause: ev.Cause, told: Told
) -> None:
    story = told("10+ 20+ 30")
    story.record(story.incident(33))
    story.record(story.ended(cause))
    decision = decide(story.policy, story.history, story.history.undecided)
    assert decision.plan is not None
    assert (decision.rule, decision.plan.step, decision.used) == ("loss incident", 20, 1)
    assert decision.plan.perturb


def test_a_checkpoint_found_missing_does_not_hide_what_else_is_undecided(told: Told) -> None:
    story = told("10+ 20+ 30")
    story.record(story.incident(33))
    story.record(story.ended("node"))
    story.record(ev.CheckpointRejected(name=story.on_disk[1], reason="it is gone from the disk"))
    decision = decide(story.policy, story.history, story.history.undecided)
    assert decision.plan is not None
    assert (decision.rule, decision.plan.step) == ("loss incident", 10)


def test_a_finished_run_stays_finished_though_a_checkpoint_is_gone(told: Told) -> None:
    story = told("10")
    story.record(ev.RunFinished(attempt=1, step=15, position=120, loss=1.0, weights_digest="", model=""))
    story.record(story.ended("finished"))
    story.record(ev.CheckpointRejected(name=story.on_disk[0], reason="it is gone from the disk"))
    assert decide(story.policy, story.history, story.history.undecided).rule == "finished"


def test_workers_that_left_because_of_a_decision_need_no_other(told: Told) -> None:
    story = told("10")
    with pytest.raises(ValueError, match="carry that one out"):
        decide(story.policy, story.history, story.ended("decided"))


@pytest.mark.parametrize("cause", get_args(ev.Cause))
def test_every_cause_of_an_end_is_known(cause: ev.Cause, told: Told) -> None:
    story = told("10")
    if cause != "decided":
        assert isinstance(decide(story.policy, story.history, story.ended(cause)), Decision)


@pytest.mark.parametrize("action", ["launch", "rollback", "requeue"])
def test_a_way_to_go_on_needs_a_plan(action: Any) -> None:
    with pytest.raises(ValueError, match=f"a decision to {action} must carry a plan"):
        Decision(number=1, action=action, rule="crash", reason="")


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"action": "stop"}, "must carry an outcome"),
        ({"action": "continue", "outcome": "failed"}, "must not carry an outcome"),
        ({"action": "continue", "plan": Plan(checkpoint=None, step=0, position=0, branch=0)}, "must not carry a plan"),
    ],
    ids=["stop without outcome", "outcome without stop", "plan without going on"],
)
def test_a_decision_of_the_wrong_shape_is_refused(fields: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        Decision(**{"number": 1, "rule": "save failed", "reason": "", **fields})


@pytest.mark.parametrize("name", ["loss_budget", "crash_budget", "node_budget", "save_budget", "rollback_margin_steps"])
def test_a_policy_refuses_less_than_nothing(name: str) -> None:
    fields: dict[str, Any] = {name: -1}
    with pytest.raises(ValueError, match=f"recovery.{name} is -1; it must be 0 or more"):
        Policy(**fields)


def test_a_policy_names_each_cause_once() -> None:
    with pytest.raises(ValueError, match="names a cause twice"):
        Policy(perturb_on=("loss", "loss"))
