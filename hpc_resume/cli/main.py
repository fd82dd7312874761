"""The verbs, and what becomes of errors: one line and an exit code, never a traceback unless it is asked for."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any, NoReturn

import typer

from hpc_resume.cli.backtest import backtest
from hpc_resume.cli.cancel import cancel
from hpc_resume.cli.export import export
from hpc_resume.cli.report import report
from hpc_resume.cli.resubmit import resubmit
from hpc_resume.cli.run import run
from hpc_resume.cli.status import status
from hpc_resume.cli.submit import submit
from hpc_resume.errors import HpcResumeError

# Typer brings a click of its own, or uses the one that is installed: this is the right class in both cases.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

app = typer.Typer(
    name="hpc_resume",
    help="Training jobs that look after themselves: they notice loss spikes and lost nodes, rewind, requeue, finish.",
    no_args_is_help=True,
    add_completion=False,
    # Rich's help would cost more than everything else that --help does.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for verb in (submit, status, report, cancel, resubmit, export, backtest, run):
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
        code = app(standalone_mode=False)
        sys.stdout.flush()
    except typer.Abort:
        code = 130
    except BrokenPipeError:
        # Whoever read our output has gone, as `head` does.
        _give_up_output()
        code = 1
    except _UsageError as error:
        _refuse_usage(error)
    except HpcResumeError as error:
        if os.environ.get("HPC_RESUME_VERBOSE"):
            traceback.print_exc()
        sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
        raise SystemExit(error.exit_code) from None
    except OSError as error:
        if os.environ.get("HPC_RESUME_VERBOSE"):
            traceback.print_exc()
        sys.stderr.write(f"error: {_in_one_line(error)}\n")
        try:
            sys.stdout.flush()
        except OSError:
            _give_up_output()
        raise SystemExit(1) from None
    raise SystemExit(code)


def _give_up_output() -> None:
    """Throw away what can't be written: Python would complain about it when it flushes at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _in_one_line(error: OSError) -> str:
    """Say what the system refused, and for which file if that is known."""
    where = f"can't use {error.filename}: " if error.filename is not None else ""
    text = f"{where}{error.strerror or error}"
    return f"{' '.join(text.split())}; see to that and try again (`-v` before the verb shows where it came from)"


def _verb() -> str:
    """Return the verb of the command line with a space before it; empty if there is none."""
    verbs = {command.callback.__name__ for command in app.registered_commands if command.callback is not None}
    return next((f" {word}" for word in sys.argv[1:] if word in verbs), "")


def _refuse_usage(error: Any) -> NoReturn:
    """Print what is wrong with a command line in one line; a command line without a verb gets the help instead."""
    text = error.format_message()
    if "\n" in text:
        sys.stderr.write(f"{text}\n")
    else:
        program = error.ctx.command_path if error.ctx else f"python -m hpc_resume{_verb()}"
        advice = "" if text.endswith("?") else f"; see `{program} --help`"
        sys.stderr.write(f"error: {text.rstrip('.')}{advice}\n")
    raise SystemExit(2) from None
