"""Stories: runs told in a line, with a decision after each thing that goes wrong, obeyed as a supervisor obeys it.

    10+ 20+ 30 loss@33 30 crash:A

is a run that commits checkpoints at steps 10, 20 and 30, of which the first two become certified; the loss goes
wrong from step 33 on; what that leads to is decided, recorded and carried out; it commits step 30 again, and crashes.
`crash:A/node2?` is a crash on node2, which the run could do without.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hpc_resume.recovery import Decision, History, Policy, decide, fold
from hpc_resume.recovery import events as ev
from hpc_resume.recovery.decide import Trigger
from hpc_resume.recovery.history import apply

BATCH = 8
"""Samples in each step of these runs."""
Cause = ev.Cause


class Story:
    """The events of one run, numbered and ordered as a supervisor and its rank 0 would record them."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.policy = policy or Policy()
        self.events: list[ev.Event] = []
        self.history = History()
        self.on_disk: list[str] = []
        """Committed checkpoints, set aside or not, oldest first."""

    @property
    def attempt(self) -> int:
        return self.history.next_attempt - 1

    @property
    def last(self) -> Decision:
        return self.history.decisions[-1]

    def record(self, event: ev.Event) -> None:
        self.events.append(event)
        self.history = apply(self.history, event)

    def begin(self) -> Story:
        """Open the first claim and start the first attempt."""
        self.claim()
        self.decide(None)
        return self

    def claim(self) -> None:
        number = len(self.history.claims) + 1
        request = ev.ClaimRequested(
            claim=number,
            cluster="local",
            job_id="7",
            restart_count=number - 1,
            host="node1",
            pid=100 + number,
            boot_id="b",
            start_ticks=1,
        )
        self.record(request)
        self.record(ev.ClaimOpened(claim=number, committed=tuple(self.on_disk)))

    def launch(self) -> None:
        number = self.history.next_attempt
        self.record(ev.AttemptStarted(attempt=number, claim=len(self.history.claims), data_seed=0, host="node1"))
        self.resumed()

    def resumed(self) -> None:
        plan = self.history.plan_decision.plan
        assert plan is not None
        self.record(
            ev.Resumed(
                attempt=self.attempt,
                checkpoint=plan.checkpoint,
                step=plan.step,
                position=plan.position,
                first_samples=(),
            )
        )

    def checkpoint(self, step: int, branch: int | None = None) -> ev.Checkpoint:
        """Write a checkpoint to the imagined disk."""
        number = len(self.on_disk) + 1
        name = f"step-{step:09d}.s{number:06d}"
        self.on_disk.append(name)
        return ev.Checkpoint(
            name=name,
            step=step,
            position=step * BATCH,
            branch=self.history.branch if branch is None else branch,
            save_number=number,
        )

    def save(self, step: int) -> ev.Checkpoint:
        checkpoint = self.checkpoint(step)
        self.record(ev.CheckpointCommitted(attempt=self.attempt, checkpoint=checkpoint))
        return checkpoint

    def certify(self, checkpoint: ev.Checkpoint) -> None:
        self.record(ev.CheckpointCertified(name=checkpoint.name, step=checkpoint.step + 20))

    def incident(self, onset: int) -> ev.LossIncident:
        return ev.LossIncident(
            attempt=self.attempt,
            detector="spike",
            onset_step=onset,
            onset_position=(onset - 1) * BATCH,
            step=onset + 2,
            position=(onset + 2) * BATCH,
            message=f"loss went wrong from step {onset} on",
        )

    def ended(self, cause: Cause, fingerprint: str = "", node: str = "node1", **more: Any) -> ev.AttemptEnded:
        message = f"how it ended: {cause}"
        return ev.AttemptEnded(
            attempt=self.attempt, cause=cause, message=message, fingerprint=fingerprint, node=node, **more
        )

    def decide(self, event: Trigger) -> Decision:
        """Decide about what was recorded last, record the decision, and carry it out."""
        decision = decide(self.policy, self.history, event)
        self.record(ev.Decided(decision=decision))
        self.carry_out(decision)
        return decision

    def carry_out(self, decision: Decision) -> None:
        match decision.action:
            case "launch":
                self.launch()
            case "rollback":
                self.resumed()
            case "requeue":
                self.leave()
                self.record(ev.ClaimEnded(claim=len(self.history.claims), outcome="requeued", message=decision.reason))
                self.claim()
                self.launch()
            case "stop":
                self.leave()
                assert decision.outcome is not None
                self.record(
                    ev.ClaimEnded(claim=len(self.history.claims), outcome=decision.outcome, message=decision.reason)
                )
            case "continue":
                pass

    def leave(self) -> None:
        if self.history.attempts and self.history.attempts[-1].ended is None:
            self.record(self.ended("decided"))

    def happens(
        self,
        event: ev.LossIncident | ev.CheckpointRejected | ev.SaveFailed | ev.AttemptEnded | ev.FaultInjected,
    ) -> Decision:
        self.record(event)
        return self.decide(event)

    def resubmit(self) -> Decision:
        self.record(ev.ResubmitRequested(runs=(0,), after={"0": self.last.number}, cluster="local", lifts=1))
        self.claim()
        return self.decide(None)

    def tell(self, text: str) -> Story:  # noqa: PLR0912 - one branch for each word
        """Let happen what the words say, one after another."""
        for word in text.split():
            what, _, detail = word.replace("@", ":").partition(":")
            if what.rstrip("+").isdigit():
                checkpoint = self.save(int(what.rstrip("+")))
                if what.endswith("+"):
                    self.certify(checkpoint)
            elif what == "loss":
                self.happens(self.incident(int(detail)))
            elif what == "reject":
                checkpoint = self.history.lineage[-1]
                self.happens(ev.CheckpointRejected(name=checkpoint.name, reason="digest differs"))
            elif what == "unsaved":
                self.happens(ev.SaveFailed(attempt=self.attempt, step=1, message="disk quota exceeded"))
            elif what == "deleted":
                self.record(ev.CheckpointDeleted(name=self.history.lineage[0].name, reason="nothing needs it"))
            elif what == "forgotten":
                oldest = next(name for name in self.history.set_aside if name not in self.history.deleted)
                self.record(ev.CheckpointDeleted(name=oldest, reason="set aside"))
            elif what == "rehearse":
                self.happens(ev.FaultInjected(attempt=self.attempt, index=0, fault="reload", step=int(detail)))
            elif what == "cancel":
                self.record(ev.CancelRequested(runs=(0,)))
            elif what == "scancel":
                self.record(ev.JobCancelled(claim=len(self.history.claims), message="the job was cancelled in Slurm"))
            elif what == "resubmit":
                self.resubmit()
            elif what == "finish":
                self.record(
                    ev.RunFinished(attempt=self.attempt, step=50, position=400, loss=1.0, weights_digest="", model="")
                )
                self.happens(self.ended("finished"))
            else:
                fingerprint, _, node = detail.partition("/")
                ended = self.ended(_CAUSES[what], fingerprint, node.rstrip("?") or "node1", avoidable=node[-1:] == "?")
                self.happens(ended)
        return self


_CAUSES: dict[str, Cause] = {
    "terminate": "terminated",
    "preempt": "preempted",
    "deadline": "deadline",
    "crash": "crash",
    "hang": "hang",
    "node": "node",
    "oom": "out_of_memory",
    "port": "port",
    "input": "input",
    "cancelled": "cancelled",
}


def _in_short(decision: Decision) -> str:
    if decision.plan is None:
        return f"{decision.action} {decision.outcome or ''}: {decision.rule}".replace(" :", ":")
    return f"{decision.action} to {decision.plan.step}: {decision.rule}"


def _told(text: str, policy: Policy | None = None) -> Story:
    story = Story(policy).begin().tell(text)
    assert fold(story.events) == story.history
    return story


@pytest.fixture(scope="session")
def new_story() -> Callable[..., Story]:
    """`new_story(policy=Policy())`: a run to which nothing happened yet, not even a claim."""
    return Story


@pytest.fixture(scope="session")
def told() -> Callable[..., Story]:
    """`told("10+ 20 crash:A", policy=Policy())`: a run to which all this has happened; see this file's docstring."""
    return _told


@pytest.fixture(scope="session")
def in_short() -> Callable[[Decision], str]:
    """`in_short(decision)`: like `requeue to 20: loss incident` or `stop failed: budget spent`."""
    return _in_short
