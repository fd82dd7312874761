"""Where a run stands."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from hpc_resume.config import load_run
from hpc_resume.config.load import load_config
from hpc_resume.config.schema import RunConfig
from hpc_resume.config.sweep import describe
from hpc_resume.journal.folder import RunFolder, SubmissionFolder
from hpc_resume.journal.metrics import loss_at, newest_rows
from hpc_resume.journal.order import data_seed, segments_in_force
from hpc_resume.journal.reader import Journal, read_journal
from hpc_resume.recovery import History
from hpc_resume.recovery import events as ev
from hpc_resume.reporting.jobs import Jobs, RunJob
from hpc_resume.reporting.sentences import concerns, sentence

State = Literal[
    "waiting", "starting", "running", "requeued", "finished", "failed", "cancelling", "cancelled", "stopped", "lost"
]
ENDED: tuple[State, ...] = ("finished", "failed", "cancelled", "stopped", "lost")
"""States that don't change by themselves; `lost` means that nobody alive is left to go on with the run."""

_LONGEST_QUOTE = 300
_HOPELESS = ("BadConstraints", "PartitionConfig", "PartitionNodeLimit", "PartitionTimeLimit")
"""Reasons for which a job waits until somebody changes it, or the cluster."""


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
    cause: str | None = None
    """Why its newest attempt ended; null while it has not, or nobody has written it down yet."""
    job: str = ""
    """Its newest Slurm job that lives, else its newest one, as `scontrol` takes it; empty on this machine."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Its own values of the swept settings, by their dotted keys; empty without a sweep."""


def summarize_submission(
    folder: SubmissionFolder, only: int | None = None, jobs: Jobs | None = None
) -> list[RunSummary]:
    """Summarize every run of a submission, or the `only` one that is meant; `jobs` may have been asked about before."""
    jobs, settings = jobs or Jobs(folder), load_config(folder.config)
    summaries = []
    for run in folder.runs():
        if only is not None and run.index != only:
            continue
        config, journal = load_run(folder.config, run.index), read_journal(run)
        summary = summarize(run, config, journal, jobs)
        summaries.append(replace(summary, changes=describe(settings, run.index)))
    return summaries


def summarize(folder: RunFolder, config: RunConfig, journal: Journal, jobs: Jobs) -> RunSummary:
    """Summarize one run; which values are its own in a sweep is not known here.

    Its settings and its journal are read by the caller, of its metrics only the end is read here.
    """
    history = journal.history
    step, loss = newest_step(folder, history)
    job = jobs.of(folder.index, history)
    state = state_of(history, jobs, job)
    newest = history.attempts[-1] if history.attempts else None
    return RunSummary(
        run=folder.index,
        state=state,
        step=step,
        steps=config.training.steps,
        loss=loss,
        attempts=len(history.attempts),
        data_seed=data_seed(config.seed, segments_in_force(history)),
        last_word=_last_word(folder, journal, state, job),
        last_decision=history.next_decision - 1,
        folder=str(folder.path),
        rule=history.stop.rule if state == "failed" and history.stop is not None else None,
        cause=newest.ended.cause if newest is not None and newest.ended is not None else None,
        job=job.job_id,
    )


def state_of(history: History, jobs: Jobs, job: RunJob) -> State:
    """Name the state of a run."""
    # Any of them, not the newest: one that was killed before it could say that it refused must not hide the owner.
    if any(claim.ended is None and jobs.liveness(claim.request) != "dead" for claim in history.claims):
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
    if not job.live:
        # Nobody was there to write it down: cancelled in the queue, or ended faster than its supervisor could act.
        return "cancelled" if job.facts is not None and job.facts.state == "CANCELLED" else "lost"
    never_owned = all(isinstance(claim.ended, ev.ClaimRefused) for claim in history.claims)
    return "waiting" if never_owned or history.resubmitted else "requeued"


def newest_step(folder: RunFolder, history: History) -> tuple[int, float | None]:
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


def _last_word(folder: RunFolder, journal: Journal, state: State, job: RunJob) -> str:
    facts = job.facts
    if state in ("waiting", "requeued") and facts is not None and facts.waits:
        newest = journal.history.decisions[-1:] if state == "requeued" else ()
        why = "".join(f"{decision.rule}: {decision.reason}; " for decision in newest if decision.action != "launch")
        never = ", and can't start like that: see `sinfo` for what there is" if facts.reason in _HOPELESS else ""
        return f"{why}job {facts.job_id} waits in Slurm's queue ({facts.reason or facts.state}){never}"
    if state == "lost":
        return _why_lost(folder, journal.history, job)
    if state == "cancelled" and not journal.history.cancelled_by and facts is not None and facts.state == "CANCELLED":
        return f"job {facts.job_id} was cancelled in Slurm"
    for record in reversed(journal.records):
        text = sentence(record.event) if concerns(record.event, journal.run) else None
        if text is not None:
            return text
    return "submitted"


def _why_lost(folder: RunFolder, history: History, job: RunJob) -> str:
    found = "no supervisor is alive any more" if history.claims else "no supervisor has ever owned it"
    if job.facts is not None:
        code = f", exit code {job.facts.exit_code}" if job.facts.exit_code else ""
        found = f"job {job.facts.job_id} ended as {job.facts.state}{code}"
        if not history.claims:
            found += f" before its supervisor could start; do its nodes see {folder.path}?"
    elif job.job_id:
        found = f"Slurm knows job {job.job_id} no more"
    log = folder.supervisor_log()
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    except FileNotFoundError:
        place = folder.submission.cluster
        if history.claims or job.job_id:
            # A batch script of the user's own writes to where it was sent from.
            return f"{found}; see {f'the logs in {place}' if place.exists() else 'the output of its batch script'}"
        return f"never started: {'its queue is gone' if place.exists() else 'it was never sent'}; resubmit sends it"
    last = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
    return f"{found}; the last line of {log}: {last[:_LONGEST_QUOTE]}"
