"""`report`: what happened to every run, what was done about it, and what it cost."""

from __future__ import annotations

from pathlib import Path

import typer


def report(
    target: Path = typer.Argument(..., help="The folder of a submission or of one of its runs, or its YAML file."),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Show what happened to the runs, and write a page about each."""
    from hpc_resume.cli import output
    from hpc_resume.cli.submission import find_target
    from hpc_resume.reporting.report import make_reports

    output.show_reports(make_reports(*find_target(target)), as_json=as_json)
