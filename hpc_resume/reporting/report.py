"""What happened to a run, what was done about it, and what it cost: as a value and as a page."""

from __future__ import annotations

import time
from dataclasses import dataclass

from hpc_resume.config import load_run
from hpc_resume.journal.folder import RunFolder, SubmissionFolder
from hpc_resume.journal.metrics import read_rows
from hpc_resume.journal.order import segments_in_force
from hpc_resume.journal.reader import Journal, read_journal
from hpc_resume.recovery import History
from hpc_resume.recovery import events as ev
from hpc_resume.reporting.curve import Curve, split_curves
from hpc_resume.reporting.jobs import Jobs
from hpc_resume.reporting.sentences import concerns, sentence, step_of
from hpc_resume.reporting.summary import RunSummary, summarize


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One line of the timeline."""

    when: str
    step: int | None
    kind: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """The report of one run."""

    run: int
    state: str
    headline: str
    page: str
    timeline: list[Entry]
    costs: dict[str, str]
    odd: dict[str, int]
    """How often something happened that no action followed, but that a person may want to look into."""
    order: list[str]
    checkpoints: list[dict[str, str]]


def make_reports(folder: SubmissionFolder, only: int | None = None) -> list[Report]:
    """Make the reports of a submission's runs, or of the `only` one that is meant, and write their pages."""
    jobs = Jobs(folder)
    return [make_report(run, jobs) for run in folder.runs() if only is None or run.index == only]


def make_report(folder: RunFolder, jobs: Jobs) -> Report:
    """Make the report of a run and write its page."""
    from hpc_resume.reporting.page import write_page

    config = load_run(folder.submission.config, folder.index)
    journal = read_journal(folder)
    history = journal.history
    summary = summarize(folder, config, journal, jobs)
    curves = split_curves(
        [(a.started.attempt, read_rows(folder.metrics(a.started.attempt))) for a in history.attempts], history
    )
    report = Report(
        run=folder.index,
        state=summary.state,
        headline=_headline(history, summary),
        page=str(folder.report),
        timeline=_timeline(journal),
        costs=_costs(journal, history, curves),
        odd=_odd(journal, history),
        order=_order(history, config.global_batch_size),
        checkpoints=_checkpoints(history),
    )
    write_page(folder, report, curves, history)
    return report


def _headline(history: History, summary: RunSummary) -> str:
    parts = [f"step {summary.step} of {summary.steps}"]
    if summary.loss is not None:
        parts.append(f"loss {summary.loss:.4f}")
    counted = {
        "loss incident": len(history.incidents),
        "near miss": len(history.near_misses),
        "restart": max(0, len(history.attempts) - 1),
    }
    for name, count in counted.items():
        if count:
            plural = {"near miss": "near misses"}.get(name, f"{name}s")
            parts.append(f"{count} {name if count == 1 else plural}")
    headline = ", ".join(parts)
    return f"{headline}; {summary.last_word}" if summary.state == "lost" else headline


def _timeline(journal: Journal) -> list[Entry]:
    jobs = {
        record.file: record.event.job_id for record in journal.records if isinstance(record.event, ev.OperatorOutcome)
    }
    entries = []
    # By the clock, as people read it, though clocks of several hosts may be a little apart.
    for record in sorted(journal.records, key=lambda record: record.time):
        text = sentence(record.event) if concerns(record.event, journal.run) else None
        if text is not None:
            if isinstance(record.event, ev.Submitted | ev.ResubmitRequested) and record.event.cluster == "slurm":
                text += f" as Slurm job {jobs.get(record.file) or '(refused)'}"
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.time))
            entries.append(Entry(when=when, step=step_of(record.event), kind=type(record.event).__name__, text=text))
    return entries


def _costs(journal: Journal, history: History, curves: list[Curve]) -> dict[str, str]:
    rows = [row for curve in curves for row in curve.rows]
    lost = sum(len(curve.rows) for curve in curves if curve.abandoned)
    seconds = sum(row["step_s"] for row in rows)
    lost_seconds = sum(row["step_s"] for curve in curves if curve.abandoned for row in curve.rows)
    saves = [r.event for r in journal.records if isinstance(r.event, ev.CheckpointCommitted)]
    waited = sum(save.waited_s for save in saves)
    total = journal.records[-1].time - journal.records[0].time if journal.records else 0.0
    restarts = max(0, len(history.attempts) - 1)
    return {
        "steps trained": f"{len(rows)}, {lost or 'none'} of them given up and trained again",
        "time": f"{total:.0f} s in all; {seconds:.0f} s in steps, {lost_seconds:.0f} s of them given up",
        "restarts": str(restarts),
        "saves": f"{len(saves)}, for which training waited {waited:.1f} s",
        "deleted by rule": f"{len(history.deleted)} checkpoints; {len(history.lineage)} are there to go on from",
    }


def _odd(journal: Journal, history: History) -> dict[str, int]:
    return {
        "skipped steps": history.skipped_steps,
        "replayed steps that differed": len(history.replay_differences),
        "failed saves": len(history.save_failures),
        "disagreements between sources": len(history.disagreements),
        "torn lines in the journal": journal.torn,
        "records of a replaced supervisor, without effect": len(journal.late),
    }


def _order(history: History, batch: int) -> list[str]:
    lines = []
    for segment in segments_in_force(history):
        lines.append(
            f"from sample {segment.start} on (after step {segment.start // batch}) the samples that were left got a "
            f"new order, by decision {segment.number}"
        )
    return lines or ["the order of the samples was never changed"]


def _checkpoints(history: History) -> list[dict[str, str]]:
    rows = []
    for checkpoint in history.known.values():
        if checkpoint.name in history.deleted:
            state = "deleted"
        elif checkpoint.name in history.set_aside:
            state = history.set_aside[checkpoint.name]
        else:
            state = "certified" if checkpoint.name in history.certified else "candidate"
        rows.append({"name": checkpoint.name, "step": str(checkpoint.step), "state": state})
    return rows
