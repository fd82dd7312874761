"""Where a run stands."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from hpc_resume.cluster.local import LocalCluster
from hpc_resume.cluster.local_allocation import LocalAllocation
from hpc_resume.config import load_run
from hpc_resume.config.load import load_config
from hpc_resume.config.schema import RunConfig
from hpc_resume.config.sweep import describe
from hpc_resume.journal.claims import Liveness
from hpc_resume.journal.folder import RunFolder, SubmissionFolder
from hpc_resume.journal.metrics import loss_at, newest_rows
from hpc_resume.journal.order import data_seed, segments_in_force
from hpc_resume.journal.reader import Journal, read_journal, read_operator
from hpc_resume.recovery import History
from hpc_resume.recovery import events as ev
from hpc_resume.recovery.history import Claim
from hpc_resume.reporting.sentences import sentence

State = Literal[
    "waiting", "starting", "running", "requeued", "finished", "failed", "cancelling", "cancelled", "stopped", "lost"
]
ENDED: tuple[State, ...] = ("finished", "failed", "cancelled", "stopped", "lost")
"""States that don't change by themselves; `lost` means that nobody alive is left to go on with the run."""

_LONGEST_QUOTE = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSummary:
    """One line of `status`."""

    run: int
    state: State
    step: int
    steps: int
    loss: float | None
    attempts: int
    data_seed: int
    last_word: str
    last_decision: int
    folder: str
    rule: str | None
    """The rule by which it failed; null in any other state."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Its own values of the swept settings, by their dotted keys; empty without a sweep."""


def summarize_submission(folder: SubmissionFolder, only: int | None = None) -> list[RunSummary]:
    """Summarize every run of a submission, or the `only` one that is meant."""
    jobs, settings = live_jobs(folder), load_config(folder.config)
    summaries = []
    for run in folder.runs():
        if only is not None and run.index != only:
            continue
        config, journal = load_run(folder.config, run.index), read_journal(run)
        summary = summarize(run, config, journal, journal.history, live=run.index in jobs)
        summaries.append(replace(summary, changes=describe(settings, run.index)))
    return summaries


def summarize(folder: RunFolder, config: RunConfig, journal: Journal, history: History, *, live: bool) -> RunSummary:
    """Summarize one run; `live` says whether a job that it belongs to is still there.

    Which values are its own in a sweep is not known here.
    Its settings and its journal are read by the caller, of its metrics only the end is read here.
    """
    step, loss = _newest_step(folder, history)
    state = state_of(history, live=live)
    return RunSummary(
        run=folder.index,
        state=state,
        step=step,
        steps=config.training.steps,
        loss=loss,
        attempts=len(history.attempts),
        data_seed=data_seed(config.seed, segments_in_force(history)),
        last_word=_why_lost(folder, history) if state == "lost" else _last_word(journal),
        last_decision=history.next_decision - 1,
        folder=str(folder.path),
        rule=history.stop.rule if state == "failed" and history.stop is not None else None,
    )


def live_jobs(folder: SubmissionFolder) -> set[int]:
    """Return the runs that belong to a job which is still there and has not given them up."""
    runs: set[int] = set()
    intents: dict[str, tuple[int, ...]] = {}
    for record in read_operator(folder):
        if isinstance(record.event, ev.Submitted | ev.ResubmitRequested):
            intents[record.file] = record.event.runs
        elif isinstance(record.event, ev.OperatorOutcome) and record.file in intents and record.event.ok:
            runs.update(intents[record.file] if LocalCluster().is_alive(record.event.job_id) else ())
    return {run for run in runs if not folder.run(run).given_up.exists()}


def state_of(history: History, *, live: bool) -> State:
    """Name the state of a run."""
    # Any of them, not the newest: one that was killed before it could say that it refused must not hide the owner.
    if any(claim.ended is None and _liveness(claim) != "dead" for claim in history.claims):
        if history.cancelled:
            return "cancelling"
        attempt = history.attempts[-1] if history.attempts else None
        return (
            "running" if attempt is not None and attempt.resumed is not None and attempt.ended is None else "starting"
        )
    if history.finished is not None:
        return "finished"
    if history.cancelled:
        return "cancelled"
    if history.stop is not None and history.stop.outcome is not None:
        return history.stop.outcome
    never_owned = all(isinstance(claim.ended, ev.ClaimRefused) for claim in history.claims)
    if never_owned or history.resubmitted:
        return "waiting" if live else "lost"
    return "requeued" if live else "lost"


def _liveness(claim: Claim) -> Liveness:
    return LocalAllocation().liveness(claim.request)


def _newest_step(folder: RunFolder, history: History) -> tuple[int, float | None]:
    """Return the newest step that still counts: after a decision to go back, the one that is gone back to."""
    if not history.attempts:
        return 0, None
    newest = history.attempts[-1]
    row = next(newest_rows(folder.metrics(newest.started.attempt)), None)
    # A rollback happens inside the attempt, before its first step; any other plan is for the next attempt.
    plans = [d for d in history.decisions if d.plan is not None and d.action != "rollback"]
    if row is not None and not any(decision.number > newest.decision for decision in plans):
        return row["step"], float(row["loss"])
    step = plans[-1].plan.step if plans and plans[-1].plan else 0
    for attempt in reversed(history.attempts):
        if attempt.resumed is None or attempt.resumed.step >= step:
            continue  # it was never there
        loss = loss_at(folder.metrics(attempt.started.attempt), step)
        if loss is not None:
            return step, loss
    return step, None


def _why_lost(folder: RunFolder, history: History) -> str:
    log = folder.supervisor_log()
    found = "no supervisor is alive any more" if history.claims else "no supervisor has ever owned it"
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    except FileNotFoundError:
        place = folder.submission.cluster
        if history.claims:
            return f"{found}; see the logs in {place}"
        return f"never started: {'its queue is gone' if place.exists() else 'it was never sent'}; resubmit sends it"
    last = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
    return f"{found}; the last line of {log}: {last[:_LONGEST_QUOTE]}"


def _last_word(journal: Journal) -> str:
    for record in reversed(journal.records):
        text = sentence(record.event)
        if text is not None:
            return text
    return "submitted"
