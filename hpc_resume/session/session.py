"""The object that a training loop talks to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hpc_resume.config.schema import RunConfig
from hpc_resume.data_order import DataOrder, rank_share
from hpc_resume.errors import DamagedError
from hpc_resume.journal.folder import RunFolder
from hpc_resume.journal.order import segments_in_force
from hpc_resume.monitor import Monitor, Observation, Verdict
from hpc_resume.recovery import Decision, decide
from hpc_resume.recovery import events as ev
from hpc_resume.session.agreement import Agreement, PendingReduction, Reduced
from hpc_resume.session.faults import FaultInjector
from hpc_resume.session.interval import SaveInterval
from hpc_resume.session.rank_state import RankState, Stateful
from hpc_resume.session.recorder import Recorder
from hpc_resume.session.saver import Saver
from hpc_resume.session.verdicts import as_event, follows_loss_incident, result_incident


@dataclass(frozen=True, kw_only=True, slots=True)
class _Step:
    step: int
    start_position: int
    position: int
    learning_rate: float
    seconds: float


class Session:
    """Carries one attempt of a run from where it resumes to where it ends.

    A loop calls `resume` once, takes its samples from `batches`, and calls `step` after every optimizer step. When
    `step` says no it leaves those batches: training is over if `running` is false; else it was rolled back in place,
    and goes on with new ones. All ranks call all methods, in the same order.
    """

    def __init__(  # noqa: PLR0913 (keyword-only)
        self,
        *,
        folder: RunFolder,
        attempt: int,
        claim: int,
        config: RunConfig,
        engine: Any,
        num_samples: int,
        stop_requested: Callable[[], bool],
        poison: Callable[[], None] = lambda: None,
        weights_at_risk: bool = False,
        device: str = "",
        stateful: Mapping[str, Stateful] | None = None,
    ) -> None:
        """Join the other ranks; the process group must be up and `engine` be a DeepSpeed engine.

        `claim` is the one that the attempt belongs to; `num_samples` is the size of the data set; `stop_requested` says
        whether this rank was asked to leave; `weights_at_risk` says that nothing keeps non-finite gradients from the
        weights; `device` names what the ranks compute on.

        Raises:
            TrainerError: the data set is not the one that the run began with.
            DeviceError: the run began on GPUs, and this attempt has none.
        """
        self._config = config
        self._stop_requested = stop_requested
        self._weights_at_risk = weights_at_risk
        self._agreement = Agreement(config.supervisor.phase_limit_s)
        self._recorder = Recorder(folder, attempt, claim, config, self._agreement, num_samples, device, engine)
        self._saver = Saver(folder, self._recorder, self._agreement, engine, config)
        self._interval = SaveInterval(config.checkpoints)
        self._faults = FaultInjector(config.faults, self._agreement.rank, poison)
        self._rank_state = RankState(config.seed, self._agreement.rank, self._agreement.world_size, stateful or {})
        self._num_samples = num_samples
        self._monitor = Monitor(config.monitor)
        self._order = DataOrder(num_samples, config.seed)
        self._pending: tuple[_Step, PendingReduction] | None = None
        self._decision: Decision | None = None
        self._stop_agreed = False
        self._all_written = False
        self._saved_step = -1
        self._stale = False
        self._loss = float("nan")
        self._last_edge = time.monotonic()
        self.completed_steps = 0
        self.position = 0
        self.running = True
        self.reached_end = False

    @property
    def lr_factor(self) -> float:
        """What the learning rate of the next step is to be multiplied by."""
        return self._recorder.history.lr_factor * self._faults.lr_factor(self.completed_steps + 1)

    def resume(self) -> None:
        """Load what the newest decision says; fall back to older checkpoints together, and never to nothing."""
        self._recorder.phase("load")
        while self.running:
            plan = self._recorder.history.plan_decision.plan
            assert plan is not None  # plan_decision has one by construction
            segments = segments_in_force(self._recorder.history)
            self._order = DataOrder(self._num_samples, self._config.seed, segments)
            self._monitor = Monitor(self._config.monitor)
            self.completed_steps, self.position = plan.step, plan.position
            self._saved_step = plan.step if plan.checkpoint else -1
            if plan.checkpoint is None:
                self._rank_state.begin(segments)
                break
            try:
                loaded = self._saver.load(plan.checkpoint, segments)
            except DamagedError as error:
                self._decide(ev.CheckpointRejected(name=plan.checkpoint, reason=str(error)))
                self._saver.set_aside(plan.checkpoint, str(error))
                continue
            problem = self._rank_state.restore(loaded, self._monitor, segments, plan.step)
            if problem is not None:
                self._recorder.record(ev.Disagreement(message=problem))
            # What was being watched at the save came from samples that will not come again, or not so.
            if loaded.segments < len(segments) or follows_loss_incident(self._recorder.history):
                self._monitor.rewound()
            break
        plan = self._recorder.history.plan_decision.plan
        if self.running and plan is not None:
            first, _ = self._order.take(self.position, min(8, self._num_samples))
            self._recorder.resumed(plan.checkpoint, self.completed_steps, self.position, tuple(first))
            self._interval.resumed(self.completed_steps)
            self._interval.announce(self._recorder, self._agreement)
            self.running = self.completed_steps < self._config.training.steps
            self.reached_end = not self.running
            self._inject()
        self._recorder.phase("first step")
        self._last_edge = time.monotonic()

    def batches(self) -> Iterator[list[int]]:
        """Return this rank's sample ids, one micro batch at a time, from where the training stands; endless."""
        self._stale = False
        return self._batches(self.position)

    def _batches(self, position: int) -> Iterator[list[int]]:
        batch = self._config.global_batch_size
        micro = self._config.training.micro_batch_size
        order = self._order
        while True:
            # Only this rank's own samples are looked up: the cost must not grow with the number of ranks.
            positions, position = order.positions(position, batch)
            for share in rank_share(positions, self._agreement.rank, self._agreement.world_size, micro):
                yield [order.sample_at(place) for place in share]

    def step(
        self,
        loss: Any,
        *,
        grad_norm: Any = None,
        loss_scale: Any = None,
        skipped: bool = False,
        learning_rate: float = 0.0,
        samples: list[int] | None = None,
    ) -> bool:
        """Note one finished optimizer step; return whether the loop goes on with the batches that it has.

        `loss` is this rank's mean over its micro batches, a float or a scalar tensor that is not waited for;
        `grad_norm` and `loss_scale` (fp16's), floats or tensors like the loss, and `skipped` are the framework's
        global ones; `samples` are this rank's, for the record.

        What the ranks tell each other is read in the call after, when the next step is under way; only where a
        checkpoint is due, or training ends, is it waited for.
        """
        if self._stale:
            raise RuntimeError("training was rolled back: leave the loop when `step` says no, and call `batches` again")
        now = time.monotonic()
        self.completed_steps += 1
        start, self.position = self.position, self._order.advance(self.position, self._config.global_batch_size)
        entry = _Step(
            step=self.completed_steps,
            start_position=start,
            position=self.position,
            learning_rate=learning_rate,
            seconds=now - self._last_edge,
        )
        self._recorder.trained(entry.step, loss, samples or [])
        reduction = self._agreement.start_reduce(
            loss,
            grad_norm,
            loss_scale=loss_scale,
            skipped=skipped,
            stop=self._stop_requested(),
            written=self._saver.is_written(),
        )
        self._read_pending()
        self._pending = (entry, reduction)
        self._at_edge()
        self._last_edge = time.monotonic()
        return self.running and not self._stale

    def finish(self, weights_digest: str, model: str) -> None:
        """Record that the run is done and its result written; only after `reached_end`."""
        self._recorder.record(
            ev.RunFinished(
                attempt=self._recorder.attempt,
                step=self.completed_steps,
                position=self.position,
                loss=self._loss,
                weights_digest=weights_digest,
                model=model,
            )
        )

    def reject_result(self, message: str) -> None:
        """Treat the finished weights as a loss incident of the last step: they must not become the result."""
        self.reached_end = False
        batch = self._config.global_batch_size
        self._decide(result_incident(self._recorder.attempt, self.completed_steps, self.position, batch, message))

    def announce(self, phase: str) -> None:
        """Say that something long begins, so that silence is not taken for a hang."""
        self._recorder.phase(phase)

    def close(self) -> None:
        """Bring everything to disk; the last call."""
        self._saver.close()
        self._recorder.close()

    def _at_edge(self) -> None:
        at_end = self.completed_steps >= self._config.training.steps
        due = self._interval.due(self._recorder.history, self.completed_steps)
        if self._decision is None and (at_end or due or self._stop_agreed):
            # Nothing is saved, and nothing is called a result, before this step's own loss was seen.
            self._read_pending()
            if at_end and self._decision is None:
                self._heed(self._monitor.close())
        if self._decision is None and self._all_written and self._saver.is_under_way:
            self._finish_save()
        if self._decision is not None:
            self.running = False
        elif at_end:
            self._save(background=False)
            self.running = self._decision is None and self.running
            self.reached_end = self.running
            self.running = False
        elif self._stop_agreed:
            self._save(background=False)
            saved = self._recorder.history.lineage[-1].name if self._saved_step == self.completed_steps else None
            self._recorder.record(
                ev.StopAgreed(attempt=self._recorder.attempt, step=self.completed_steps, checkpoint=saved)
            )
            self.running = False
        else:
            if due:
                self._save(background=self._config.checkpoints.mode == "async")
            if self.running:
                self._inject()

    def _read_pending(self) -> None:
        if self._pending is None:
            return
        (entry, reduction), self._pending = self._pending, None
        seen = reduction.read()
        self._loss = seen.loss
        self._interval.step(entry.seconds)
        self._stop_agreed = self._stop_agreed or seen.stop
        # What was said before a save began says nothing about it.
        self._all_written = seen.written and self._saver.is_under_way
        segments = self._order.segments
        self._recorder.step(
            step=entry.step,
            branch=self._recorder.history.branch,
            order=segments[-1].number if segments else 0,
            loss=seen.loss,
            grad_norm=seen.grad_norm,
            lr=entry.learning_rate,
            samples=entry.position,
            step_s=round(entry.seconds, 6),
        )
        if self._decision is None:
            self._watch(entry, seen)

    def _watch(self, entry: _Step, seen: Reduced) -> None:
        if seen.skipped:
            self._recorder.record(ev.StepSkipped(attempt=self._recorder.attempt, step=entry.step))
        verdict = self._monitor.observe(
            Observation(
                step=entry.step,
                start_position=entry.start_position,
                position=entry.position,
                loss=seen.loss,
                grad_norm=seen.grad_norm,
                loss_scale=seen.loss_scale,
                skipped=seen.skipped,
                weights_at_risk=self._weights_at_risk,
            )
        )
        self._heed(verdict)
        if verdict is None and not self._monitor.pending and not seen.skipped:
            self._recorder.certify(entry.step)

    def _heed(self, verdict: Verdict | None) -> None:
        if verdict is None:
            return
        event = as_event(verdict, self._recorder.attempt)
        if isinstance(event, ev.NearMiss):
            self._recorder.record(event)
            return
        # The decision should know of the save that is under way: it may be the only one.
        if self._saver.is_under_way and isinstance(outcome := self._saver.finish(), ev.SaveFailed):
            self._recorder.record(outcome)
        self._decide(event)

    def _decide(self, event: ev.LossIncident | ev.CheckpointRejected | ev.SaveFailed | ev.FaultInjected) -> Decision:
        """Record the event, decide on rank 0, record the decision, and let every rank know it."""
        self._recorder.record(event)
        decision = self._agreement.from_rank_0(decide(self._config.recovery, self._recorder.history, event))
        self._recorder.record(ev.Decided(decision=decision))
        if decision.action in ("requeue", "stop"):
            self._decision = decision
            self.running = False
        return decision

    def _save(self, *, background: bool) -> None:
        """Save where training stands; a save that is still under way comes first."""
        # As one: who waits for these ranks to leave must not take a moment between two saves for silence.
        with self._recorder.saving():
            if self._saver.is_under_way:
                self._finish_save()
            if self._decision is not None or self._saved_step == self.completed_steps:
                return
            self._recorder.sync()
            self._interval.begun(self.completed_steps)
            self._saver.begin(
                self.completed_steps,
                self.position,
                self._order.segments,
                self._rank_state.capture(self.completed_steps, self.position, self._monitor),
                self._faults.before_commit,
                background=background,
            )
            self._saved_step = self.completed_steps
            if not background:
                self._finish_save()

    def _finish_save(self) -> None:
        self._all_written = False
        outcome = self._saver.finish()
        if isinstance(outcome, ev.SaveFailed):
            self._saved_step = -1
            self._decide(outcome)
        else:
            self._interval.saved(outcome)
            self._interval.announce(self._recorder, self._agreement)

    def _roll_back(self) -> None:
        """Go back in these processes, all ranks together, as the newest decision says."""
        self._faults.forget()
        self._stale = True
        self.resume()

    def _inject(self) -> None:
        step = self.completed_steps + 1
        due = self._faults.due(self._recorder.history, step)
        if due and self._saver.is_under_way:
            # A drill should end the same way each time, whatever the disk is doing.
            self._finish_save()
        if self._decision is not None:
            return
        for index, fault in due:
            event = ev.FaultInjected(attempt=self._recorder.attempt, index=index, fault=fault.kind, step=step)
            if fault.kind == "reload":
                self._rehearse_rollback(event)
                return
            self._recorder.record(event)
            self._agreement.barrier()
            self._faults.set_off(fault, self._recorder.supervisor_pid)

    def _rehearse_rollback(self, event: ev.FaultInjected) -> None:
        self._read_pending()
        if self._decision is None and self._decide(event).action == "rollback":
            self._roll_back()
