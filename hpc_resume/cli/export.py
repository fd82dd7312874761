"""`export`: a checkpoint as a plain transformers folder."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from hpc_resume.journal.folder import RunFolder
    from hpc_resume.recovery.export_choice import Choice


def export(
    target: Path = typer.Argument(..., help="The folder of a run or of its submission, or its YAML file."),
    step: int = typer.Option(None, "--step", help="Which checkpoint; the newest healthy one if not given."),
    output: Path = typer.Option(None, "--output", help="A new folder; export-step-... in the run's if not given."),
    runs: str = typer.Option(None, "--runs", help="Which run, where the submission has several, like 3."),
    force: bool = typer.Option(False, "--force", help="Also one that is suspect, or not certified yet."),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Write the weights of a checkpoint as a plain transformers folder, with the tokenizer.

    That is the last checkpoint of a run that has finished, and the newest certified one of any other, which may go on
    meanwhile. It needs no GPU, and memory for about one copy of the model.
    """
    from hpc_resume.checkpoints import catalog
    from hpc_resume.cli import output as out
    from hpc_resume.errors import CheckpointError, ConfigError

    run = _one_run(target, runs)
    choice = _choose(run, step, force=force)
    checkpoint = choice.checkpoint
    path = Path.cwd() / (output or run.exported(checkpoint.step))
    if path.exists():
        raise ConfigError(f"{path} exists already; delete it, or name another folder with --output")
    if catalog.find(run.checkpoints, checkpoint.name) is None:
        raise CheckpointError(f"{run.checkpoints / checkpoint.name} is gone; choose another one with --step")
    if choice.objection is not None:
        sys.stderr.write(f"warning: {checkpoint.name} is exported all the same: {choice.objection}\n")
    done = _in_a_process(run, checkpoint.name, path, force=force)
    if as_json:
        out.write_json(done)
    else:
        out.say(f"exported step {done['step']} ({done['checkpoint']}, {done['parameters']:,} parameters)")
        out.say(f"model: {done['path']}")


def _one_run(target: Path, runs: str | None) -> RunFolder:
    from hpc_resume.cli.choose_runs import parse_runs
    from hpc_resume.cli.submission import find_target
    from hpc_resume.errors import ConfigError

    folder, only = find_target(target)
    chosen = parse_runs(runs, folder, only)
    if len(chosen) != 1:
        raise ConfigError(
            f"{folder.path} has {len(chosen)} runs that are meant, and `export` takes one: name its folder, like "
            f"{folder.run(chosen[0]).path}, or --runs {chosen[0]}"
        )
    return folder.run(chosen[0])


def _choose(run: RunFolder, step: int | None, *, force: bool) -> Choice:
    from hpc_resume.config import load_run
    from hpc_resume.journal.reader import read_journal
    from hpc_resume.recovery.export_choice import Standing, choose_for_export
    from hpc_resume.reporting.summary import newest_step

    config = load_run(run.submission.config, run.index)
    history = read_journal(run).history
    standing = Standing(
        history=history,
        newest_step=newest_step(run, history)[0],
        certify_after_steps=config.checkpoints.certify_after_steps,
        margin_steps=config.recovery.rollback_margin_steps,
    )
    return choose_for_export(standing, step=step, force=force)


def _in_a_process(run: RunFolder, name: str, path: Path, *, force: bool) -> dict[str, Any]:
    """Export in a process that may import torch, and return what it says; what it tells people it says itself."""
    from hpc_resume.cluster.processes import tie_to_parent
    from hpc_resume.errors import ExportError

    command = [sys.executable, "-m", "hpc_resume.worker.export", str(run.path), name, str(path)]
    tie = functools.partial(tie_to_parent, os.getpid(), signal.SIGTERM)
    done = subprocess.run(
        [*command, *(["--force"] if force else [])],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        preexec_fn=tie,
    )
    if done.returncode < 0:
        number = signal.Signals(-done.returncode).name
        why = {"SIGKILL": "was memory short?", "SIGBUS": "was the checkpoint deleted meanwhile?"}
        raise ExportError(f"the export was ended by {number}; {why.get(number, 'try again')}")
    if done.returncode:
        raise SystemExit(done.returncode)
    result: dict[str, Any] = json.loads(done.stdout)
    return result
