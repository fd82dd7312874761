"""`cancel`: end runs for good."""

from __future__ import annotations

from pathlib import Path

import typer


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
    from hpc_resume.reporting.summary import ENDED, summarize_submission

    folder, only = find_target(target)
    chosen = parse_runs(runs, folder, only)
    summaries = [s for s in summarize_submission(folder) if s.run in chosen]
    # A run that failed, was stopped or was lost could be sent again; cancelled, it stays where it is. One that is
    # about to leave is named again: who asks twice wants to hear that it is.
    ids = tuple(s.run for s in summaries if s.state not in NOT_CANCELLED)
    if ids:
        writer = record_operator(folder, CancelRequested(runs=ids))
        # The supervisors see the record within a second; a run that still waits would see it when it starts.
        line = f"cancelled {named(ids, len(chosen))}"
        jobs = sorted({s.job for s in summaries if s.run in ids and s.job and s.state not in ENDED})
        try:
            make_cluster("slurm" if jobs else "local").cancel(jobs)
        except ClusterError as error:
            writer.record(OperatorOutcome(ok=False, job_id="", message=str(error)))
            raise ClusterError(
                f"{line}, and no supervisor goes on with that, but their jobs could not be taken from Slurm's queue: "
                f"{error}; type it again, or use `scancel {' '.join(jobs)}`"
            ) from error
        writer.record(OperatorOutcome(ok=True, job_id="", message="recorded"))
    else:
        line = nothing("cancel", [(s.run, NOT_CANCELLED[s.state]) for s in summaries])
    output.show_changed("cancelled", ids, line, as_json=as_json)
