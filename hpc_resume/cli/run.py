"""`run`: the supervisor of one run, as a batch script calls it."""

from __future__ import annotations

from pathlib import Path

import typer


def run(
    target: Path = typer.Argument(..., help="The YAML file, or the folder of its submission."),
    overrides: list[str] = typer.Argument(None, help="Settings that go before the file's: key=value."),
    index: int = typer.Option(0, "--index", help="Which run of a sweep."),
) -> None:
    """Own one run until it ends or must go back to the queue; batch scripts call this.

    Attaches to the run's folder if there is one with the same config, the run is unfinished and nobody alive owns it.
    The exit code is 0 (finished), 1 (failed), 3 (somebody else owns it), 75 (start me again) or 143 (stopped).
    """
    import logging

    from hpc_resume.cli.attach import run_target

    logging.basicConfig(level=logging.INFO, format="%(asctime)s supervisor %(message)s")
    raise SystemExit(run_target(target, overrides or [], index))
