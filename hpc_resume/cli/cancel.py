"""`cancel`: end runs for good."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from hpc_resume.journal.folder import SubmissionFolder
    from hpc_resume.reporting.jobs import Jobs
    from hpc_resume.reporting.summary import RunSummary


def cancel(
    target: Path = typer.Argument(..., help="The folder of a submission or of one of its runs, or its YAML file."),
    runs: str = typer.Option(None, "--runs", help="Which runs, like 3,7-9; all that did not finish if not given."),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Cancel runs: they end within seconds and nothing starts them again by itself."""
    from hpc_resume.cli import output
    from hpc_resume.cli.changed import NOT_CANCELLED, named, nothing
    from hpc_resume.cli.choose_runs import parse_runs
    from hpc_resume.cli.submission import find_target, record_operator
    from hpc_resume.cluster.choose import make_cluster
    from hpc_resume.errors import ClusterError
    from hpc_resume.recovery.events import CancelRequested, OperatorOutcome
    from hpc_resume.reporting.jobs import Jobs
    from hpc_resume.reporting.summary import summarize_submission

    folder, only = find_target(target)
    chosen = parse_runs(runs, folder, only)
    jobs = Jobs(folder)
    summaries = [s for s in summarize_submission(folder, jobs=jobs) if s.run in chosen]
    # A run that failed, was stopped or was lost could be sent again; cancelled, it stays where it is. One that is
    # about to leave is named again: who asks twice wants to hear that it is.
    ids = tuple(s.run for s in summaries if s.state not in NOT_CANCELLED)
    if ids:
        line = f"cancelled {named(ids, len(chosen))}"
        # The supervisors see the record within a second; a run that still waits would see it when it starts.
        with closing(record_operator(folder, CancelRequested(runs=ids))) as writer:
            here, elsewhere = _living([s for s in summaries if s.run in ids], folder, jobs)
            for cluster, names in elsewhere.items():
                sys.stderr.write(f"{_must_be_done_there(cluster, names)}\n")
            try:
                make_cluster("slurm" if here else "local").cancel(here)
            except ClusterError as error:
                writer.record(OperatorOutcome(ok=False, job_id="", message=str(error)))
                raise ClusterError(
                    f"{line}, and no supervisor goes on with that, but their jobs could not be taken from Slurm's "
                    f"queue: {error}; type it again, or use `scancel {' '.join(here)}`"
                ) from error
            writer.record(OperatorOutcome(ok=True, job_id="", message="recorded"))
    else:
        line = nothing("cancel", [(s.run, NOT_CANCELLED[s.state]) for s in summaries])
    output.show_changed("cancelled", ids, line, as_json=as_json)


def _living(
    summaries: Sequence[RunSummary], folder: SubmissionFolder, jobs: Jobs
) -> tuple[list[str], dict[str, list[str]]]:
    """Return all jobs of runs that live, or may live, in this Slurm, and by its name those in another one."""
    from hpc_resume.journal.reader import read_journal
    from hpc_resume.reporting.summary import ENDED

    here: set[str] = set()
    elsewhere: dict[str, list[str]] = {}
    for summary in summaries:
        job = jobs.of(summary.run, read_journal(folder.run(summary.run)).history)
        # While Slurm is silent any job may live; those of a run that has ended are not worth an error.
        if job.facts is not None or summary.state not in ENDED:
            here.update(job.living)
        for name, cluster in job.elsewhere:
            elsewhere.setdefault(cluster, []).append(name)
    return sorted(here), elsewhere


def _must_be_done_there(cluster: str, names: Sequence[str]) -> str:
    return (
        f"job {', '.join(names)} belongs to the Slurm cluster {cluster}, which can't be asked from here: a supervisor "
        f"there ends within seconds; to take what waits from its queue, use `scancel {' '.join(names)}` on {cluster}"
    )
