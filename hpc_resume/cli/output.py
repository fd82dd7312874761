"""What the verbs print: tables for people on a terminal, JSON for programs."""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hpc_resume.config.schema import RunConfig
from hpc_resume.config.values import show
from hpc_resume.journal.folder import SubmissionFolder
from hpc_resume.reporting.report import Report
from hpc_resume.reporting.summary import RunSummary


def write_json(value: Any) -> None:
    """Print one JSON document; a number that is not finite becomes null, since JSON has none."""
    sys.stdout.write(json.dumps(_finite(value), indent=1, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


_WIDE = 100_000
"""Columns of an output that is no terminal: a program that reads a table must not find it folded."""


def say(text: str | Text) -> None:
    """Print one line; nothing in it is markup, since paths and messages may hold brackets."""
    Console(highlight=False, soft_wrap=True).print(text, markup=False)


def write_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Print a table; on a terminal the last column is folded into the width that is there."""
    table = Table(box=None, pad_edge=False)
    for name in head:
        table.add_column(name, no_wrap=name != head[-1])
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    if sys.stdout.isatty():
        Console(highlight=False).print(table)
        return
    text = io.StringIO()
    Console(file=text, width=_WIDE, highlight=False).print(table)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines()))


def in_words(changes: Mapping[str, Any]) -> str:
    """Write the swept values of a run; `-` if it has none."""
    return ", ".join(f"{k}={v if isinstance(v, str) else show(v)}" for k, v in changes.items()) or "-"


def show_status(summaries: list[RunSummary], *, as_json: bool) -> None:
    """Print where the runs stand; those of a sweep with the values that are their own."""
    if as_json:
        write_json([asdict(summary) for summary in summaries])
        return
    swept = any(summary.changes for summary in summaries)
    on_slurm = any(summary.job for summary in summaries)
    rows = [
        (
            str(s.run),
            *((in_words(s.changes),) if swept else ()),
            *((s.job or "-",) if on_slurm else ()),
            s.state,
            f"{s.step}/{s.steps}",
            "-" if s.loss is None else f"{s.loss:.4f}",
            str(s.attempts),
            str(s.data_seed),
            s.last_word,
        )
        for s in summaries
    ]
    own = ("settings of its own",) if swept else ()
    job = ("job",) if on_slurm else ()
    write_table(("run", *own, *job, "state", "step", "loss", "attempts", "data seed", "last word"), rows)


def show_reports(reports: list[Report], *, as_json: bool) -> None:
    """Print what happened to the runs."""
    if as_json:
        write_json([asdict(report) for report in reports])
        return
    for report in reports:
        say(Text.assemble((f"run {report.run} {report.state}", "bold"), f": {report.headline}"))
        if report.timeline:
            rows = [(e.when, "-" if e.step is None else str(e.step), e.text) for e in report.timeline]
            write_table(("when", "step", "what happened"), rows)
        for name, value in report.costs.items():
            say(f"  {name}: {value}")
        for name, count in report.odd.items():
            if count:
                say(f"  {name}: {count}")
        say(f"report: {report.page}")


def show_changed(what: str, runs: tuple[int, ...], line: str, *, as_json: bool) -> None:
    """Print which runs a command changed: for programs what happened to them, for people a line that says it."""
    if as_json:
        write_json({"runs": list(runs), "what": what})
        return
    say(line)


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
    """Say what was sent; on this machine follow the runs to their end.

    The exit code is 1 if one did not finish, and 2 if every such run failed by its input before it had trained.
    """
    if detach or kind != "local":
        if as_json:
            write_json({"folder": str(folder.path), "cluster": kind, "job_id": job_id, "runs": runs})
        else:
            say(f"sent {len(runs)} run(s) to {place(kind)} as job {job_id}; folder {folder.path}")
            say(f"see `python -m hpc_resume status {folder.path}`")
        if kind == "slurm":
            _warn_of_new_jobs(job_id)
        return
    from hpc_resume.reporting.follow import follow
    from hpc_resume.reporting.report import make_reports

    summaries = follow(folder, config, job_id, runs, quiet=as_json)
    reports = make_reports(folder)
    if as_json:
        write_json([asdict(summary) for summary in summaries])
    else:
        show_reports([report for report in reports if report.run in runs], as_json=False)
    unfinished = [summary for summary in summaries if summary.state != "finished"]
    # A run that has trained already is worth going on with; one that has not was never more than a wrong input.
    unusable = [summary for summary in unfinished if summary.rule == "input" and summary.step == 0]
    if unusable:
        sys.stderr.write(
            "the input can't be used: correct it, then submit under another name with name=..., "
            f"or delete {folder.path} and submit again\n"
        )
    if unfinished:
        raise SystemExit(2 if unusable == unfinished else 1)


def _warn_of_new_jobs(job_id: str) -> None:
    from hpc_resume.cluster.slurm import may_requeue

    if not may_requeue(job_id):
        sys.stderr.write(
            f"this site does not let jobs be requeued (job {job_id} has Requeue=0 in spite of --requeue): "
            "each restart will be a new job of the same run, and if the node of its supervisor is lost, `resubmit` it\n"
        )


def place(kind: str) -> str:
    """Name a kind of cluster for people."""
    return "this machine" if kind == "local" else "Slurm"
