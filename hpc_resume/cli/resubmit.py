"""`resubmit`: send again what ended without finishing."""

from __future__ import annotations

from pathlib import Path

import typer


def resubmit(
    target: Path = typer.Argument(..., help="The folder of a submission, or its YAML file."),
    runs: str = typer.Option(None, "--runs", help="Which runs, like 3,7-9; all if not given."),
    cancelled: bool = typer.Option(False, "--cancelled", help="Also bring back runs that were cancelled."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Print which runs would be sent; change nothing."),
    detach: bool = typer.Option(False, "--detach", help="Do not wait for runs on this machine."),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Send runs again that ended without finishing; they go on from their newest checkpoint.

    Runs that finished, that were cancelled, or that are alive are left alone, so it is safe to type twice.
    """
    from hpc_resume.cli import output
    from hpc_resume.cli.choose_runs import parse_runs
    from hpc_resume.cli.submission import find_submission, send
    from hpc_resume.cluster.choose import cluster_kind
    from hpc_resume.config.load import load_config
    from hpc_resume.recovery.events import ResubmitRequested
    from hpc_resume.reporting.summary import summarize_submission

    folder = find_submission(target)
    config = load_config(folder.config)
    chosen = parse_runs(runs, folder)
    wanted = {"failed", "stopped", "lost"} | ({"cancelled"} if cancelled else set())
    again = [s for s in summarize_submission(folder) if s.run in chosen and s.state in wanted]
    ids = tuple(s.run for s in again)
    if dry_run or not ids:
        output.show_changed("would be sent again" if dry_run else "sent again", ids, len(chosen), as_json=as_json)
        return
    kind = cluster_kind(config)
    after = {str(s.run): s.last_decision for s in again}
    job_id = send(folder, config, kind, ResubmitRequested(runs=ids, after=after, cluster=kind), new=False)
    output.after_sending(folder, config, kind, job_id, list(ids), detach=detach, as_json=as_json)
