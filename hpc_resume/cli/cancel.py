"""`cancel`: end runs for good."""

from __future__ import annotations

from pathlib import Path

import typer


def cancel(
    target: Path = typer.Argument(..., help="The folder of a submission, or its YAML file."),
    runs: str = typer.Option(None, "--runs", help="Which runs, like 3,7-9; all that did not finish if not given."),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Cancel runs: they end within seconds and nothing starts them again by itself."""
    from hpc_resume.cli import output
    from hpc_resume.cli.choose_runs import parse_runs
    from hpc_resume.cli.submission import find_submission, record_operator
    from hpc_resume.recovery.events import CancelRequested, OperatorOutcome
    from hpc_resume.reporting.summary import summarize_submission

    folder = find_submission(target)
    chosen = parse_runs(runs, folder)
    summaries = [s for s in summarize_submission(folder) if s.run in chosen]
    # A run that failed, was stopped or was lost could be sent again; cancelled, it stays where it is. One that is
    # about to leave is named again: who asks twice wants to hear that it is.
    ids = tuple(s.run for s in summaries if s.state not in ("finished", "cancelled"))
    if ids:
        writer = record_operator(folder, CancelRequested(runs=ids))
        # The supervisors see the record within a second; a run that still waits sees it when it starts.
        writer.record(OperatorOutcome(ok=True, job_id="", message="recorded"))
    output.show_changed("cancelled", ids, len(chosen), as_json=as_json)
