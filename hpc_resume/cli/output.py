"""What the verbs print: tables for people on a terminal, JSON for programs."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from hpc_resume.config.schema import RunConfig
from hpc_resume.config.sweep import describe, expand
from hpc_resume.journal.folder import SubmissionFolder
from hpc_resume.reporting.report import Report
from hpc_resume.reporting.summary import RunSummary


def write_json(value: Any) -> None:
    """Print one JSON document."""
    sys.stdout.write(json.dumps(value, indent=1) + "\n")


def _console() -> Console:
    return Console(highlight=False, soft_wrap=not sys.stdout.isatty())


def show_plan(config: RunConfig, kind: str, *, as_json: bool) -> None:
    """Print what `submit` would do."""
    runs = expand(config)
    plan = [
        {
            "run": index,
            "changes": describe(config, index) if config.sweep else {},
            "steps": run.training.steps,
            "global_batch_size": run.global_batch_size,
            "ranks": run.world_size,
        }
        for index, run in enumerate(runs)
    ]
    folder = f"{config.runs_dir}/{config.name}"
    if as_json:
        write_json({"folder": folder, "cluster": kind, "runs": plan})
        return
    console = _console()
    console.print(f"would create {folder} and send {len(runs)} run(s) to {_place(kind)}; nothing was created")
    table = Table("run", "settings of its own", "steps", "samples a step", "ranks", box=None, pad_edge=False)
    for row in plan:
        changes = ", ".join(f"{key}={value}" for key, value in row["changes"].items()) or "-"  # type: ignore[attr-defined]
        table.add_row(*(str(v) for v in (row["run"], changes, row["steps"], row["global_batch_size"], row["ranks"])))
    console.print(table)


def show_status(summaries: list[RunSummary], *, as_json: bool) -> None:
    """Print where the runs stand."""
    if as_json:
        write_json([asdict(summary) for summary in summaries])
        return
    table = Table("run", "state", "step", "loss", "attempts", "data seed", "last word", box=None, pad_edge=False)
    for s in summaries:
        loss = "-" if s.loss is None else f"{s.loss:.4f}"
        table.add_row(str(s.run), s.state, f"{s.step}/{s.steps}", loss, str(s.attempts), str(s.data_seed), s.last_word)
    _console().print(table)


def show_reports(reports: list[Report], *, as_json: bool) -> None:
    """Print what happened to the runs."""
    if as_json:
        write_json([asdict(report) for report in reports])
        return
    console = _console()
    for report in reports:
        console.print(f"[bold]run {report.run}: {report.state}[/bold] {report.headline}")
        table = Table("when", "step", "what happened", box=None, pad_edge=False)
        for entry in report.timeline:
            table.add_row(entry.when, "-" if entry.step is None else str(entry.step), entry.text)
        console.print(table)
        for name, value in report.costs.items():
            console.print(f"  {name}: {value}")
        console.print(f"report: {report.page}")


def show_changed(verb: str, runs: tuple[int, ...], of: int, *, as_json: bool) -> None:
    """Print which runs a command changed."""
    if as_json:
        write_json({"runs": list(runs), "what": verb})
        return
    names = ", ".join(str(run) for run in runs) or "none"
    _console().print(f"{verb}: {names} (of {of})")


def after_sending(
    folder: SubmissionFolder,
    config: RunConfig,
    kind: str,
    job_id: str,
    runs: list[int],
    *,
    detach: bool,
    as_json: bool,
) -> None:
    """Say what was sent; on this machine follow the runs to their end, and exit with 1 if one did not finish."""
    if detach or kind != "local":
        if as_json:
            write_json({"folder": str(folder.path), "cluster": kind, "job_id": job_id, "runs": runs})
        else:
            _console().print(f"sent {len(runs)} run(s) to {_place(kind)} as job {job_id}; folder {folder.path}")
            _console().print(f"see `python -m hpc_resume status {folder.path}`")
        return
    from hpc_resume.reporting.follow import follow
    from hpc_resume.reporting.report import make_reports

    summaries = follow(folder, config, job_id, runs, quiet=as_json)
    reports = make_reports(folder)
    if as_json:
        write_json([asdict(summary) for summary in summaries])
    else:
        show_reports([report for report in reports if report.run in runs], as_json=False)
    if any(summary.state != "finished" for summary in summaries):
        raise SystemExit(1)


def _place(kind: str) -> str:
    return "this machine" if kind == "local" else "Slurm"
