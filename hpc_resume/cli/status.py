"""`status`: where every run stands."""

from __future__ import annotations

from pathlib import Path

import typer


def status(
    target: Path = typer.Argument(..., help="The folder of a submission or of one of its runs, or its YAML file."),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Show where the runs of a submission stand."""
    from hpc_resume.cli import output
    from hpc_resume.cli.submission import find_target
    from hpc_resume.reporting.summary import summarize_submission

    output.show_status(summarize_submission(*find_target(target)), as_json=as_json)
