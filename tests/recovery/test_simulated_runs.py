"""Runs drawn at random, in a loop that always obeys: whatever goes wrong, they stay sane and come to an end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import cycle, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc_resume.recovery import Decision, History, Policy, decide, fold
from hpc_resume.recovery import events as ev
from hpc_resume.recovery.history import apply

INTERVAL = 10
CERTIFY_AFTER = 12
FREE = ("preempted", "deadline")


@dataclass(frozen=True)
class Trouble:
    """What goes wrong next, and after how many steps."""

    steps: int
    kind: str
    back: int = 0
    """Of a loss incident: how long before it was noticed it began."""
    fingerprint: str = "A"
    decided_by_rank_0: bool = True
    """Of a loss incident: else rank 0 is killed before it can decide."""


troubles = st.builds(
    Trouble,
    steps=st.integers(0, 40),
    kind=st.sampled_from(["loss", "loss", "crash", "hang", "out_of_memory", "node", *FREE, "rejected", "unsaved"]),
    back=st.integers(0, 25),
    fingerprint=st.sampled_from("ABC"),
    decided_by_rank_0=st.booleans(),
)
policies = st.builds(
    Policy,
    perturb_on=st.sampled_from([(), ("loss",), ("node",), ("loss", "node")]),
    rollback_margin_steps=st.integers(0, 12),
    loss_budget=st.integers(0, 4),
    crash_budget=st.integers(0, 3),
    node_budget=st.integers(0, 4),
    save_budget=st.integers(0, 3),
)


@dataclass
class Simulation:
    """A training that obeys: what it is told to load it loads, when it is told to stop it stops."""

    story: Any
    wall: int = 10**9
    """A step that training never gets beyond."""
    step: int = 0
    resumed_from: list[str | None] = field(default_factory=list)
    branches: list[int] = field(default_factory=list)

    def begin(self) -> Simulation:
        self.story.claim()
        self.obey(self.decide(None))
        return self

    @property
    def history(self) -> History:
        history: History = self.story.history
        return history

    def live(self, trouble: Trouble) -> None:
        self.train(trouble.steps)
        if trouble.kind == "loss":
            event: Any = self.story.incident(max(1, self.step - trouble.back))
            self.story.record(event)
            if not trouble.decided_by_rank_0:
                self.story.record(self.story.ended("crash", trouble.fingerprint))
                event = self.history.undecided
        elif trouble.kind == "rejected":
            if not self.history.lineage:
                return
            event = ev.CheckpointRejected(name=self.history.lineage[-1].name, reason="digest differs")
            self.story.record(event)
        elif trouble.kind == "unsaved":
            event = ev.SaveFailed(attempt=self.story.attempt, step=self.step, message="disk full")
            self.story.record(event)
        else:
            if trouble.kind in FREE and self.step > max((c.step for c in self.history.lineage), default=0):
                self.story.save(self.step)
            event = self.story.ended(trouble.kind, trouble.fingerprint)
            self.story.record(event)
        self.obey(self.decide(event))

    def train(self, steps: int) -> None:
        for _ in range(steps):
            if self.step >= self.wall:
                return
            self.step += 1
            if self.step % INTERVAL == 0:
                self.story.save(self.step)
            for checkpoint in self.history.lineage:
                if checkpoint.step + CERTIFY_AFTER <= self.step and checkpoint.name not in self.history.certified:
                    self.story.certify(checkpoint)

    def decide(self, event: Any) -> Decision:
        decision = decide(self.story.policy, self.history, event)
        assert decide(self.story.policy, fold(self.story.events), event) == decision, "not deterministic"
        self.check(decision)
        self.story.record(ev.Decided(decision=decision))
        return decision

    def check(self, decision: Decision) -> None:
        history, policy = self.history, self.story.policy
        assert decision.number == history.next_decision
        if decision.budget is not None:
            assert 0 <= decision.used <= getattr(policy, f"{decision.budget}_budget")
        if decision.plan is None:
            return
        plan = decision.plan
        if plan.checkpoint is None:
            assert (plan.step, plan.position) == (0, 0)
            assert not history.rejected
        else:
            checkpoint = history.checkpoint(plan.checkpoint)
            assert (plan.step, plan.position) == (checkpoint.step, checkpoint.position)
            assert plan.checkpoint not in history.set_aside
        assert plan.branch >= history.branch
        spent_on_loss = bool(history.decisions) and history.decisions[-1].budget == "loss"
        wanted = {
            "loss incident": "loss",
            "node lost": "node",
            "resubmitted": "loss" if spent_on_loss else None,
        }.get(decision.rule)
        assert plan.perturb is (wanted in policy.perturb_on)
        if plan.perturb or plan.step < max((c.step for c in history.lineage), default=0):
            assert plan.branch > history.branch, "two ways on would look like one"
        if decision.rule == "loss incident":
            assert plan.step <= max(0, history.incidents[-1].onset_step - policy.rollback_margin_steps)

    def obey(self, decision: Decision) -> None:
        self.story.carry_out(decision)
        if decision.plan is not None:
            self.step = decision.plan.step
            self.resumed_from.append(decision.plan.checkpoint)
            self.branches.append(decision.plan.branch)


@given(policy=policies, life=st.lists(troubles, max_size=25), resubmit=st.booleans())
@settings(max_examples=150, deadline=None)
def test_whatever_happens_every_decision_is_sound(
    policy: Policy, life: list[Trouble], resubmit: bool, new_story: Callable[..., Any]
) -> None:
    run = Simulation(new_story(policy)).begin()
    for trouble in life:
        if run.history.stop is not None:
            if not resubmit:
                break
            run.story.record(ev.ResubmitRequested(runs=(0,), after={"0": run.story.last.number}, cluster="local"))
            run.story.claim()
            run.obey(run.decide(None))
            continue
        run.live(trouble)
    numbers = [d.number for d in run.history.decisions]
    assert numbers == list(range(1, len(numbers) + 1))
    assert all(a <= b for a, b in pairwise(run.branches))
    assert run.history == fold(run.story.events)
    rewound = [r.number for r in run.history.rewinds]
    assert rewound == sorted(set(rewound))
    assert len(run.resumed_from) == len(rewound)


@given(policy=policies, life=st.lists(troubles, min_size=1, max_size=5), wall=st.integers(0, 60))
@settings(max_examples=100, deadline=None)
def test_without_progress_every_run_comes_to_an_end(
    policy: Policy, life: list[Trouble], wall: int, new_story: Callable[..., Any]
) -> None:
    costly = [t for t in life if t.kind not in (*FREE, "rejected")] or [Trouble(steps=5, kind="crash")]
    run = Simulation(new_story(policy), wall=wall).begin()
    budget = policy.loss_budget + policy.crash_budget + policy.node_budget
    # Each checkpoint further than all before refills the budgets; there can be no more of them than intervals.
    most = (wall // INTERVAL + 1) * (budget + 1) * (policy.save_budget + 1) * len(costly)
    ahead: Iterator[Trouble] = cycle(costly)
    for _ in range(most + 1):
        if run.history.stop is not None:
            break
        run.live(next(ahead))
    assert run.history.stop is not None
    assert run.history.stop.outcome == "failed"


@given(policy=policies, life=st.lists(troubles, max_size=15), cut=st.integers(0, 200))
@settings(max_examples=60, deadline=None)
def test_whoever_reads_half_and_then_the_rest_knows_the_same(
    policy: Policy, life: list[Trouble], cut: int, new_story: Callable[..., Any]
) -> None:
    run = Simulation(new_story(policy)).begin()
    for trouble in life:
        if run.history.stop is None:
            run.live(trouble)
    history = fold(run.story.events[:cut])
    for event in run.story.events[cut:]:
        history = apply(history, event)
    assert history == run.history == fold(run.story.events)


@pytest.mark.parametrize("kind", ["loss", "crash", "hang", "out_of_memory", "node"])
def test_a_run_that_makes_progress_survives_any_number_of_incidents(kind: str, new_story: Callable[..., Any]) -> None:
    run = Simulation(new_story(Policy(loss_budget=1, crash_budget=1, node_budget=1))).begin()
    for _ in range(40):
        run.live(Trouble(steps=35, kind=kind))
    assert run.history.stop is None
    assert run.step > 40 * INTERVAL
