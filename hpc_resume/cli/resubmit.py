"""`resubmit`: send again what ended without finishing."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from hpc_resume.journal.folder import RunFolder
    from hpc_resume.reporting.jobs import Jobs
    from hpc_resume.reporting.summary import RunSummary


@dataclass(frozen=True, kw_only=True, slots=True)
class _Silent:
    """What may still go on with a run and can't be asked from here."""

    claim: int
    """The newest claim that is over if it is gone; 0 if there is none."""
    name: str


def resubmit(
    target: Path = typer.Argument(..., help="The folder of a submission or of one of its runs, or its YAML file."),
    runs: str = typer.Option(None, "--runs", help="Which runs, like 3,7-9; all if not given."),
    cancelled: bool = typer.Option(False, "--cancelled", help="Also bring back runs that were cancelled."),
    owner_is_gone: bool = typer.Option(
        False, "--owner-is-gone", help="Also send runs whose supervisor can't be asked from here: you know it is gone."
    ),
    dry_run: bool = typer.Option(False, "--dry-run", help="Print which runs would be sent; change nothing."),
    detach: bool = typer.Option(False, "--detach", help="Do not wait for runs on this machine."),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Send runs again that ended without finishing; they go on from their newest checkpoint.

    Runs that finished, that were cancelled, or that are alive are left alone, so it is safe to type twice.
    """
    from hpc_resume.cli import output
    from hpc_resume.cli.changed import named, nothing, why_not_sent
    from hpc_resume.cli.choose_runs import parse_runs
    from hpc_resume.cli.submission import find_target, newest_command, refuse_edited, send
    from hpc_resume.cluster.choose import cluster_kind
    from hpc_resume.config.load import load_config
    from hpc_resume.recovery.events import ResubmitRequested
    from hpc_resume.reporting.jobs import Jobs
    from hpc_resume.reporting.summary import summarize_submission

    folder, only = find_target(target)
    config = load_config(folder.config)
    refuse_edited(target, folder)
    chosen = parse_runs(runs, folder, only)
    # Read before the states are, so that a cancellation in between is not lifted unseen.
    lifts = newest_command(folder) if cancelled else None
    jobs = Jobs(folder)
    silent = {run: owner for run in chosen if (owner := _silent_owner(folder.run(run), jobs)) is not None}
    summaries = [s for s in summarize_submission(folder, jobs=jobs) if s.run in chosen]
    silent |= {s.run: job for s in summaries if (job := _job_elsewhere(folder.run(s.run), s, jobs)) is not None}
    gone = silent if owner_is_gone else {}
    again = [s for s in summaries if _is_wanted(s, silent=s.run in silent, gone=s.run in gone, cancelled=cancelled)]
    for run in sorted(silent.keys() - gone.keys()):
        sys.stderr.write(
            f"run {run} is left alone: {silent[run].name} can't be asked from here; "
            "if you know that it is gone, add --owner-is-gone\n"
        )
    ids = tuple(s.run for s in again)
    if dry_run or not ids:
        line = f"would send {named(ids, len(chosen))} again"
        if not ids:
            line = nothing("send again", why_not_sent(summaries, silent.keys() - gone.keys()))
        output.show_changed("would be sent again" if dry_run else "sent again", ids, line, as_json=as_json)
        return
    kind = cluster_kind(config)
    intent = ResubmitRequested(
        runs=ids,
        after={str(s.run): s.last_decision for s in again},
        cluster=kind,
        lifts=lifts,
        gone={str(run): gone[run].claim for run in ids if run in gone},
    )
    job_id = send(folder, config, kind, intent, new=False, book=jobs.book)
    output.after_sending(folder, config, kind, job_id, list(ids), detach=detach, as_json=as_json)


def _is_wanted(summary: RunSummary, *, silent: bool, gone: bool, cancelled: bool) -> bool:
    if silent:
        # Whatever its state says, nobody here knows whether somebody is still at it.
        return gone and (cancelled or summary.state not in ("cancelled", "cancelling"))
    return summary.state in ("failed", "stopped", "lost") or (cancelled and summary.state == "cancelled")


def _silent_owner(run: RunFolder, jobs: Jobs) -> _Silent | None:
    """Return the newest supervisor that can't be asked from here, unless another one is alive."""
    from hpc_resume.journal.reader import read_journal

    found = None
    for claim in read_journal(run).history.claims:
        if claim.ended is None:
            state = jobs.liveness(claim.request)
            if state == "alive":
                return None
            if state == "unknown":
                owner = claim.request
                found = _Silent(claim=owner.claim, name=f"its supervisor (process {owner.pid} on {owner.host})")
    return found


def _job_elsewhere(run: RunFolder, summary: RunSummary, jobs: Jobs) -> _Silent | None:
    """Return the job in another Slurm that is all that a run without a supervisor may still be waiting for."""
    from hpc_resume.journal.reader import read_journal

    if summary.state not in ("waiting", "requeued"):
        return None
    history = read_journal(run).history
    job = jobs.of(run.index, history)
    if job.living or not job.elsewhere:
        return None
    name, cluster = job.elsewhere[-1]
    newest = history.claims[-1].request.claim if history.claims else 0
    return _Silent(claim=newest, name=f"its job {name} in the Slurm cluster {cluster}")
