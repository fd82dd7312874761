"""The supervisor's loop."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Literal

from hpc_resume.checkpoints import catalog
from hpc_resume.cluster.base import (
    EXIT_FAILED,
    EXIT_FINISHED,
    EXIT_REQUEUED,
    EXIT_STOPPED,
    Allocation,
    Interruption,
)
from hpc_resume.cluster.stop_signal import StopSignal
from hpc_resume.config.schema import RunConfig
from hpc_resume.errors import ClusterError, JournalError, RunBusyError
from hpc_resume.journal.claims import is_replaced, open_claim
from hpc_resume.journal.folder import RunFolder, refuse_shared
from hpc_resume.journal.order import data_seed, segments_in_force
from hpc_resume.journal.patience import patiently
from hpc_resume.journal.reader import numbers, read_journal, read_operator
from hpc_resume.journal.writer import JournalWriter
from hpc_resume.recovery import Decision, History, decide, fold
from hpc_resume.recovery import events as ev
from hpc_resume.recovery.decide import Trigger
from hpc_resume.recovery.history import apply
from hpc_resume.supervisor.classify import classify, is_explained
from hpc_resume.supervisor.reconcile import adopt_checkpoints, end_lost_attempt, quarantine
from hpc_resume.supervisor.watch import Surroundings, watch

_log = logging.getLogger(__name__)
_EXIT = {"finished": EXIT_FINISHED, "failed": EXIT_FAILED, "cancelled": EXIT_STOPPED, "stopped": EXIT_STOPPED}


def supervise(folder: RunFolder, config: RunConfig, allocation: Allocation) -> int:
    """Own a run until it ends or goes back to the queue; return the exit code for that.

    Raises:
        RunBusyError: another supervisor owns the run, or may.
        ConfigError: the folder can be written to by others.
    """
    refuse_shared(folder.submission.path)
    refuse_shared(folder.path)
    stop = StopSignal()
    claim, writer, _ = open_claim(
        folder, allocation.request, allocation.liveness, lambda: catalog.list_committed(folder.checkpoints)
    )
    try:
        return _Supervisor(folder, config, allocation, stop, claim, writer).run()
    except (RunBusyError, ClusterError):
        raise
    except Exception:
        # Not a decision: without the end of its claim in the journal, whoever started us starts the next one.
        _log.exception("the supervisor failed; the next one goes on")
        raise
    finally:
        writer.close()


class _Supervisor:
    """One claim on one run."""

    def __init__(
        self,
        folder: RunFolder,
        config: RunConfig,
        allocation: Allocation,
        stop: StopSignal,
        claim: int,
        writer: JournalWriter,
    ) -> None:
        self._folder = folder
        self._config = config
        self._allocation = allocation
        self._stop = stop
        self._claim = claim
        self._writer = writer
        self._history = History()
        self._launched = False

    def run(self) -> int:
        """Carry out decision after decision until one of them ends the claim."""
        self._read()
        self._history = end_lost_attempt(self._folder, self._history, self._allocation, self._record)
        self._adopt()
        for name in catalog.discard_uncommitted(self._folder.checkpoints, self._history.known):
            _log.info("deleted %s, which was never committed", name)
        while True:
            decision = self._next_decision()
            if decision.action != "stop" and self._stop.requested:
                done = self._why_to_end()
                if done is not None and done.cause != "cancelled":
                    return self._requeue(done.message)
                event = None if done is not None else ev.StopRequested(claim=self._claim)
                if event is not None:
                    self._record(event)
                decision = self._decide(event)
            _log.info("%s: %s (%s)", decision.action, decision.rule, decision.reason)
            if decision.action == "stop":
                assert decision.outcome is not None  # held by Decision
                self._end(decision.outcome, decision.reason)
                return _EXIT[decision.outcome]
            # A claim that has launched nothing yet is the one that the run was requeued for.
            if decision.action == "requeue" and self._launched:
                avoid = decision.plan.avoid_nodes if decision.plan is not None else ()
                return self._requeue(f"{decision.rule}: {decision.reason}", avoid)
            self._attempt()

    def _requeue(self, message: str, avoid: tuple[str, ...] = ()) -> int:
        self._end("requeued", message)
        self._leave_if_replaced()
        self._allocation.requeue(avoid)
        return EXIT_REQUEUED

    def _next_decision(self) -> Decision:
        history = self._history
        if history.stop is not None:
            return history.stop
        # What a person asked for comes before whatever is still open, except a loss incident: that needs its rewind.
        asked = history.cancelled or history.resubmitted
        if history.pending is not None and not asked and not _leads_nowhere(history.pending, history):
            return history.pending
        event = history.undecided
        if history.cancelled or (history.resubmitted and not isinstance(event, ev.LossIncident)):
            event = None
        return self._decide(event)

    def _decide(self, event: Trigger) -> Decision:
        decision = decide(self._config.recovery, self._history, event)
        self._record(ev.Decided(decision=decision))
        return decision

    def _attempt(self) -> None:
        """Start the workers, watch them to their end, and record how that came."""
        self._leave_if_replaced()
        self._history = quarantine(self._folder, self._history, self._record)
        # A zombie may have written a file that our history does not count: its number is taken.
        number = max([self._history.next_attempt, *(n + 1 for n in numbers(self._folder.journal, "attempt"))])
        request = self._allocation.request(self._claim)
        seed = data_seed(self._config.seed, segments_in_force(self._history))
        # As many as there are; the ranks find the same settings by their own number.
        config = self._config.at_most(len(self._allocation.nodes))
        nodes = self._allocation.nodes[: config.cluster.max_nodes]
        self._record(
            ev.AttemptStarted(attempt=number, claim=self._claim, data_seed=seed, host=request.host, nodes=nodes)
        )
        self._launched = True
        workers = self._allocation.start(self._folder, number, self._claim, config.cluster)
        around = Surroundings(
            stops=lambda: self._stop.requests,
            by_a_person=self._is_a_person,
            requeue_wished=lambda: self._stop.requeue_wished,
            interruption=lambda: self._note(self._allocation.interruption()),
            cancelled=lambda: read_cancelled(self._folder),
            replaced=lambda: is_replaced(self._folder, self._claim),
            seconds_left=self._allocation.seconds_left,
        )
        try:
            watched = watch(workers, self._folder.metrics(number), self._config.supervisor, around)
        finally:
            workers.kill()
        self._leave_if_replaced()
        self._read()
        # Rank 0 may have died between a commit and its record; the decision must know of that checkpoint.
        self._adopt()
        self._note(watched.interruption)
        if watched.interruption is None:
            suspicious = not is_explained(self._history, watched)
            memory = workers.ran_out_of_memory()
            watched = replace(watched, interruption=self._ask(suspicious=suspicious), out_of_memory=memory)
        ended = classify(self._history, watched, workers.reports(), request.host)
        if ended.cause == "crash":
            ended = replace(ended, avoidable=self._allocation.can_avoid(ended.node))
        self._record(ended)

    def _ask(self, *, suspicious: bool) -> Interruption | None:
        try:
            found = self._allocation.interruption(suspicious=suspicious)
        except ClusterError as error:
            _log.warning("can't ask what the cluster is doing to this job: %s", error)
            return None
        return self._note(found)

    def _why_to_end(self) -> Interruption | None:
        """Find out who wants this process to end; None for a person."""
        try:
            found = self._note(self._allocation.interruption())
        except ClusterError as error:
            # A stop that may be the cluster's must not become one that stays.
            _log.warning("asked to end, and can't ask why: %s", error)
            return Interruption(cause="preempted", message="asked to end, and nobody could say by whom")
        if found is None and not self._is_a_person():
            return Interruption(cause="preempted", message="asked to end, and nobody says why")
        return found

    def _is_a_person(self) -> bool:
        return self._stop.interrupted or self._allocation.sigterm_is_a_person

    def _note(self, found: Interruption | None) -> Interruption | None:
        """Record a cancellation at once: it must outlive whatever else ends this job."""
        if found is not None and found.cause == "cancelled" and not self._history.cancelled:
            try:
                if read_cancelled(self._folder):
                    return found  # it was `cancel` that did it, which has left its own record
            except (OSError, JournalError) as error:
                _log.warning("can't read who cancelled: %s", error)
            self._record(ev.JobCancelled(claim=self._claim, message=found.message))
        return found

    @patiently
    def _adopt(self) -> None:
        self._history = adopt_checkpoints(self._folder, self._history, self._record)

    @patiently
    def _leave_if_replaced(self) -> None:
        if is_replaced(self._folder, self._claim):
            raise RunBusyError(f"{self._folder.path}: a newer supervisor owns this run; claim {self._claim} leaves")

    def _end(self, outcome: Literal["requeued", "finished", "failed", "cancelled", "stopped"], message: str) -> None:
        self._record(ev.ClaimEnded(claim=self._claim, outcome=outcome, message=message))

    @patiently
    def _read(self) -> None:
        journal = read_journal(self._folder)
        self._writer.saw(journal.counts)
        self._history = journal.history

    def _record(self, event: ev.Event) -> History:
        patiently(self._writer.record)(event)
        self._history = apply(self._history, event, self._folder.index)
        return self._history


def _leads_nowhere(decision: Decision, history: History) -> bool:
    """Tell whether the checkpoint that a decision names can't be used any more."""
    name = decision.plan.checkpoint if decision.plan is not None else None
    return name is not None and all(name != checkpoint.name for checkpoint in history.lineage)


def read_cancelled(folder: RunFolder) -> bool:
    """Tell whether a person has cancelled the run."""
    return fold((r.event for r in read_operator(folder.submission)), folder.index).cancelled
