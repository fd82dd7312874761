"""What is deleted, and that every rewind that the rules can ask for finds what it would have found without that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hpc_resume.recovery import Decision, History, Policy, decide, fold
from hpc_resume.recovery import events as ev
from hpc_resume.recovery.history import apply
from hpc_resume.recovery.retention import (
    Retention,
    expendable,
    foot_of_the_ladder,
    in_use,
    spent_conversions,
)

Told = Callable[..., Any]
PATIENT = Policy(crash_budget=99, node_budget=99, idle_budget=99)


def keeping(
    last: int = 1,
    every: int | None = None,
    quarantined: int = 99,
    budget: int = 1,
    reach: int = 15,
    interval: int | None = 10,
) -> Retention:
    return Retention(
        keep_last=last,
        keep_every_steps=every,
        keep_quarantined=quarantined,
        loss_budget=budget,
        reach_steps=reach,
        interval_steps=interval,
    )


def deleted_steps(story: Any, keep: Retention) -> list[int]:
    return [story.history.known[one.name].step for one in expendable(story.history, keep)]


def saved(until: int, certified: int, interval: int = 10) -> str:
    """A story that saved at each interval; those up to `certified` became that."""
    return " ".join(f"{step}{'+' * (step <= certified)}" for step in range(interval, until + 1, interval))


def test_a_run_in_which_nothing_is_certified_keeps_everything(told: Told) -> None:
    assert deleted_steps(told(saved(500, certified=0)), keeping()) == []


def test_nothing_is_deleted_before_there_is_anything(new_story: Told) -> None:
    assert expendable(new_story().history, keeping()) == ()


@pytest.mark.parametrize(
    ("budget", "foot"),
    [(0, 500 - 25), (1, 500 - 2 * 25), (2, 500 - 25 - 35 - 25), (4, 500 - 25 - 35 - 45 - 55 - 25)],
)
def test_the_ladder_has_a_rung_for_each_incident_and_one_for_whoever_sends_the_run_again(
    budget: int, foot: int, told: Told
) -> None:
    story = told(saved(520, certified=500))
    keep = keeping(budget=budget)
    assert foot_of_the_ladder(story.history, keep) == foot
    assert deleted_steps(story, keep) == list(range(10, foot, 10))


def test_a_rung_counts_checkpoints_where_fewer_were_saved_than_intended(told: Told) -> None:
    story = told(saved(500, certified=500, interval=50))
    # Newest certified 500; before 485: 450; before 435: 350, the second newest of them; before 335: 300.
    assert foot_of_the_ladder(story.history, keeping(budget=2)) == 300


def test_as_long_as_the_ladder_is_longer_than_the_run_everything_is_kept(told: Told) -> None:
    assert deleted_steps(told(saved(120, certified=100)), keeping(budget=4)) == []


def test_all_candidates_stay_however_many_there_are(told: Told) -> None:
    story = told(saved(500, certified=200))
    assert max(deleted_steps(story, keeping(budget=1))) < 200 - 2 * 25


def test_the_newest_and_the_milestones_are_kept_besides(told: Told) -> None:
    story = told(saved(300, certified=290))
    foot = 290 - 2 * 25
    assert deleted_steps(story, keeping(last=10)) == list(range(10, 300 - 9 * 10, 10))
    every = deleted_steps(story, keeping(every=50))
    assert every == [step for step in range(10, foot, 10) if step % 50]


def test_what_the_running_attempt_was_loaded_from_is_kept(told: Told) -> None:
    story = told("10+ 20+ 30+ crash:A", PATIENT).tell(saved(500, certified=500).split(" ", 3)[3])
    assert in_use(story.history) == {story.on_disk[2]}
    assert deleted_steps(story, keeping())[:3] == [10, 20, 40]


@pytest.mark.parametrize("open_matter", ["undecided", "pending"])
def test_nothing_is_deleted_while_something_is_open(open_matter: str, told: Told) -> None:
    story = told(saved(500, certified=480))
    assert deleted_steps(story, keeping())
    incident = story.incident(495)
    story.record(incident)
    if open_matter == "pending":
        story.record(ev.Decided(decision=decide(story.policy, story.history, incident)))
    assert deleted_steps(story, keeping()) == []


def quarantine_all(story: Any) -> None:
    for name, reason in story.history.set_aside.items():
        if name not in story.history.quarantined:
            story.record(ev.CheckpointQuarantined(name=name, reason=reason))


@pytest.mark.parametrize(("limit", "deleted"), [(0, [20, 30, 40]), (1, [20, 30]), (3, []), (9, [])])
def test_the_newest_of_what_was_set_aside_are_kept(limit: int, deleted: list[int], told: Told) -> None:
    story = told("10+ 20 30 40 loss@22")
    assert deleted_steps(story, keeping(quarantined=0)) == [], "not renamed yet"
    quarantine_all(story)
    assert deleted_steps(story, keeping(quarantined=limit)) == deleted


def test_newest_means_saved_last_and_not_the_furthest(told: Told) -> None:
    story = told("10+ 20 30 loss@22 20 loss@22")
    quarantine_all(story)
    (kept,) = set(story.history.quarantined) - {e.name for e in expendable(story.history, keeping(quarantined=1))}
    assert kept == story.on_disk[-1]


def test_what_was_never_recorded_as_committed_is_not_touched(told: Told) -> None:
    story = told("10+ 20")
    story.record(ev.CheckpointQuarantined(name="step-000000030.s000009", reason="void"))
    assert deleted_steps(story, keeping(quarantined=0)) == []


def test_a_converted_copy_is_needed_until_the_next_commit_and_named_once(told: Told) -> None:
    story = told("10+ 20+ crash:A", PATIENT)
    for name in (*story.on_disk, story.on_disk[0]):
        story.record(ev.CheckpointConverted(attempt=1, name=name, before=4, now=2))
    assert spent_conversions(story.history) == tuple(story.on_disk)


def test_an_anomaly_that_passed_lets_the_ladder_reach_further_back(told: Told) -> None:
    story = told(saved(500, certified=500))
    before = foot_of_the_ladder(story.history, keeping(budget=0))
    story.record(ev.NearMiss(attempt=1, detector="spike", onset_step=300, step=340, message=""))
    assert foot_of_the_ladder(story.history, keeping(budget=0)) == before - 40


def test_an_interval_that_is_chosen_is_taken_from_the_history(told: Told) -> None:
    story = told(saved(500, certified=500))
    auto = keeping(budget=2, interval=None)
    # Newest before 485, second newest before 465, newest before 435.
    assert foot_of_the_ladder(story.history, auto) == 430
    story.record(ev.IntervalChosen(attempt=1, steps=10, message=""))
    assert foot_of_the_ladder(story.history, auto) == foot_of_the_ladder(story.history, keeping(budget=2))


CERTIFY_AFTER = 12


@dataclass(frozen=True)
class Trouble:
    """What goes wrong next, after how many steps."""

    steps: int
    kind: str
    back: float = 0.0
    """Of a loss incident: where between the oldest possible onset, 1, and the newest it began."""
    damaged: int = 0
    """How many checkpoints in a row turn out to be damaged in the resume that follows."""
    sent_again: bool = True
    """Whether a person sends a run again that stopped."""


troubles = st.builds(
    Trouble,
    steps=st.integers(0, 200),
    kind=st.sampled_from(["loss", "loss", "loss", "crash", "node", "preempted", "deadline"]),
    back=st.sampled_from([0.0, 0.2, 0.9, 1.0]),
    damaged=st.sampled_from([0, 0, 0, 0, 1, 2]),
)


@dataclass
class Life:
    """A run with retention, and beside it what its history would be without."""

    story: Any
    keep: Retention
    horizon: int
    saves_every: int = 0
    """Steps between two saves; 0 is what the settings say."""
    step: int = 0
    in_a_row: int = 0
    """Incidents and damaged checkpoints since the last incident before which training had got further than ever."""
    over: bool = False

    def begin(self) -> Life:
        self.whole = History()
        tell = self.story.record

        def record(event: ev.Event) -> None:
            tell(event)
            if not isinstance(event, ev.CheckpointDeleted):
                self.whole = apply(self.whole, event)

        self.story.record = record
        self.story.claim()
        self.obey(self.decide(None))
        return self

    @property
    def history(self) -> History:
        history: History = self.story.history
        return history

    @property
    def newest_certified(self) -> int:
        return max((c.step for c in self.whole.lineage if c.name in self.whole.certified), default=0)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.step += 1
            for checkpoint in self.whole.lineage:
                if checkpoint.step + CERTIFY_AFTER <= self.step and checkpoint.name not in self.whole.certified:
                    self.story.certify(checkpoint)
            if self.step % (self.saves_every or self.keep.interval_steps or 1) == 0:
                self.save()

    def save(self) -> None:
        self.story.save(self.step)
        certified = [c.name for c in self.history.lineage if c.name in self.history.certified]
        newest = [c.name for c in self.history.lineage[-self.keep.keep_last :]]
        needed = {*newest, *(c.name for c in self.history.lineage if c.step > self.newest_certified)}
        doomed = expendable(self.history, self.keep)
        for one in doomed:
            assert one.name in self.history.known
            assert one.name not in needed | in_use(self.history) | self.history.deleted
            self.story.record(ev.CheckpointDeleted(name=one.name, reason=one.reason))
        assert not certified or set(certified) & {c.name for c in self.history.lineage}
        assert expendable(self.history, self.keep) == (), "not all at once"
        # Also what the running attempt was loaded from stays, though it was set aside since.
        aside = self.history.quarantined - self.history.deleted
        assert len(aside - in_use(self.history)) <= self.keep.keep_quarantined

    def decide(self, event: Any) -> Decision:
        decision = decide(self.story.policy, self.history, event)
        without = decide(self.story.policy, self.whole, event)
        # The reason may say that something was deleted.
        assert replace(decision, reason="") == replace(without, reason=""), "retention changed a decision"
        if self.whole.certified.intersection(c.name for c in self.whole.lineage) and decision.plan is not None:
            assert decision.plan.checkpoint is None or decision.plan.checkpoint not in self.history.deleted
        self.story.record(ev.Decided(decision=decision))
        return decision

    def obey(self, decision: Decision) -> None:
        self.story.carry_out(decision)
        for name, reason in list(self.history.set_aside.items()):
            if name not in self.history.quarantined | self.history.deleted:
                self.story.record(ev.CheckpointQuarantined(name=name, reason=reason))
        if decision.plan is not None:
            self.step = decision.plan.step

    def live(self, trouble: Trouble) -> None:
        self.train(trouble.steps)
        if trouble.kind == "loss":
            event = self.lose(trouble.back)
            if self.in_a_row > self.keep.loss_budget:
                # It ends the run, and a person may send it again; what comes then is beyond the ladder.
                self.over = True
        else:
            if trouble.kind in ("preempted", "deadline") and self.step > max(
                (c.step for c in self.whole.lineage), default=0
            ):
                self.save()
            event = self.story.ended(trouble.kind, f"{self.story.attempt}")
            self.story.record(event)
        decision = self.decide(event)
        self.obey(decision)
        if decision.action == "stop":
            decision = self.resubmit()
        for _ in range(trouble.damaged):
            self.reject()

    def lose(self, back: float) -> ev.LossIncident:
        earliest = max(1, self.newest_certified + 1 - self.horizon)
        onset = max(1, earliest + round((1 - back) * max(0, self.step - earliest)))
        event: ev.LossIncident = self.story.incident(onset)
        before = [c for c in self.whole.lineage if c.step <= onset - self.story.policy.rollback_margin_steps]
        choice = [c for c in before if c.name in self.whole.certified] or before
        progress = bool(choice) and choice[-1].step > self.whole.high_water_step
        self.in_a_row = 1 if progress else self.in_a_row + 1
        self.story.record(event)
        return event

    def reject(self) -> None:
        if self.over or self.in_a_row >= self.keep.loss_budget or not self.whole.lineage:
            return
        self.in_a_row += 1
        event = ev.CheckpointRejected(name=self.whole.lineage[-1].name, reason="digest differs")
        self.story.record(event)
        decision = self.decide(event)
        self.obey(decision)
        self.over = decision.action == "stop"

    def resubmit(self) -> Decision:
        self.story.record(ev.ResubmitRequested(runs=(0,), after={"0": self.story.last.number}, cluster="local"))
        self.story.claim()
        decision = self.decide(None)
        self.obey(decision)
        return decision


retentions = st.builds(
    keeping,
    last=st.integers(1, 4),
    every=st.sampled_from([None, None, 50, 70]),
    quarantined=st.integers(0, 3),
    budget=st.integers(0, 4),
    reach=st.integers(0, 60),
    interval=st.sampled_from([5, 10, 20]),
)


def begin_life(keep: Retention, margin: int, new_story: Told) -> Life:
    policy = replace(PATIENT, rollback_margin_steps=margin, loss_budget=keep.loss_budget)
    return Life(new_story(policy), keep, keep.reach_steps - margin).begin()


@given(
    keep=retentions,
    margin=st.integers(0, 12),
    head_start=st.integers(0, 400),
    denser=st.sampled_from([1, 1, 5]),
    life=st.lists(troubles, max_size=12),
)
@settings(max_examples=120, deadline=None)
def test_retention_changes_no_decision(
    keep: Retention, margin: int, head_start: int, denser: int, life: list[Trouble], new_story: Told
) -> None:
    assume(margin <= keep.reach_steps)
    run = begin_life(keep, margin, new_story)
    # It may have saved more often at first, as a run does that is preempted again and again.
    run.saves_every = (keep.interval_steps or 1) // denser
    run.train(head_start)
    run.saves_every = 0
    for trouble in life:
        if run.over:
            break
        run.live(trouble)
    assert run.history == fold(run.story.events)


def test_the_ladder_is_long_enough_where_training_that_went_back_saves_less_often(new_story: Told) -> None:
    run = begin_life(keeping(budget=4, reach=1, interval=20), 0, new_story)
    run.saves_every = 4
    run.train(400)
    run.saves_every = 0
    led_to = []
    # Four times down the ladder, and further than ever in between.
    for steps in (0, 50, 90, 120):
        run.train(steps)
        for _ in range(4):
            run.live(Trouble(steps=0, kind="loss", back=1.0))
        led_to.append(run.step)
    assert led_to == sorted(led_to, reverse=True)
    assert not run.over


@given(keep=retentions, margin=st.integers(0, 12), back=st.lists(st.sampled_from([0.0, 1.0]), min_size=5, max_size=5))
@settings(max_examples=30, deadline=None)
def test_the_deepest_ladder_ends_at_a_checkpoint_that_is_still_there(
    keep: Retention, margin: int, back: list[float], new_story: Told
) -> None:
    assume(margin <= keep.reach_steps)
    run = begin_life(keep, margin, new_story)
    # Long enough that no rung leads to before the first checkpoint.
    run.train(1000)
    for place in back[: keep.loss_budget + 1]:
        run.live(Trouble(steps=3, kind="loss", back=place))
        plan = run.history.plan_decision.plan
        assert plan is not None
        assert plan.checkpoint in {c.name for c in run.history.lineage}
    assert run.history.deleted


@given(keep=retentions, steps=st.integers(0, 1200))
@settings(max_examples=25, deadline=None)
def test_no_more_is_kept_than_the_ladder_the_newest_and_the_milestones_need(
    keep: Retention, steps: int, new_story: Told
) -> None:
    run = begin_life(keep, 0, new_story)
    run.train(steps)
    interval = keep.interval_steps or 1
    ladder = sum(keep.reach_steps + depth * interval for depth in keep.rungs) // interval + 1
    candidates = CERTIFY_AFTER // interval + 2
    milestones = steps // keep.keep_every_steps if keep.keep_every_steps else 0
    # As long as the run is too short for the whole ladder, the rungs that count checkpoints may go one further each.
    most = max(keep.keep_last, ladder + candidates + len(keep.rungs)) + milestones
    assert len(run.history.lineage) <= most
