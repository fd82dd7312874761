"""The verbs, and what becomes of errors: one line and an exit code, never a traceback unless it is asked for."""

from __future__ import annotations

import os
import sys

import typer

from hpc_resume.cli.cancel import cancel
from hpc_resume.cli.report import report
from hpc_resume.cli.resubmit import resubmit
from hpc_resume.cli.run import run
from hpc_resume.cli.status import status
from hpc_resume.cli.submit import submit
from hpc_resume.errors import HpcResumeError

app = typer.Typer(
    name="hpc_resume",
    help="Training jobs that look after themselves: they notice loss spikes and lost nodes, rewind, requeue, finish.",
    no_args_is_help=True,
    add_completion=False,
    # Rich's help would cost more than everything else that --help does.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for verb in (submit, status, report, cancel, resubmit, run):
    app.command()(verb)


@app.callback()
def options(
    verbose: bool = typer.Option(False, "--verbose", "-v", help="Show where an error came from."),
) -> None:
    """Take what goes before the verb."""
    if verbose:
        os.environ["HPC_RESUME_VERBOSE"] = "1"


def main() -> None:
    """Run the command line."""
    try:
        app()
    except HpcResumeError as error:
        if os.environ.get("HPC_RESUME_VERBOSE"):
            raise
        sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
        raise SystemExit(error.exit_code) from None
