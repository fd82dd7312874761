"""Following runs on this machine in a terminal."""

from __future__ import annotations

import sys
import time
from dataclasses import replace

from rich.console import Console

from hpc_resume.cluster.local import LocalCluster
from hpc_resume.config.load import load_config
from hpc_resume.config.schema import RunConfig
from hpc_resume.config.sweep import describe, expand
from hpc_resume.journal.folder import SubmissionFolder
from hpc_resume.journal.reader import Journal, read_journal, read_operator
from hpc_resume.reporting.jobs import Jobs
from hpc_resume.reporting.sentences import concerns, sentence
from hpc_resume.reporting.summary import ENDED, RunSummary, summarize

_POLL_S = 1.0


def follow(
    folder: SubmissionFolder, config: RunConfig, job_id: str, runs: list[int], *, quiet: bool
) -> list[RunSummary]:
    """Print what happens until all runs have ended; Ctrl-C asks them to stop cleanly, and waits for that."""
    console = Console(stderr=True, highlight=False, soft_wrap=not sys.stderr.isatty(), quiet=quiet)
    console.print(f"{len(runs)} run(s) of {config.name} on this machine; everything is in {folder.path}")
    since = max(record.time for record in read_operator(folder))
    configs = expand(load_config(folder.config))
    printed: set[tuple[int, str, int]] = set()
    with console.status("starting", spinner="dots") as line:
        while True:
            try:
                jobs = Jobs(folder)
                summaries = []
                for index in runs:
                    run, journal = folder.run(index), read_journal(folder.run(index))
                    summary = summarize(run, configs[index], journal, jobs)
                    summaries.append(replace(summary, changes=describe(config, index)))
                    for seconds, text in _news(journal, printed, since):
                        who = f"run {index}: " if len(runs) > 1 else ""
                        console.print(f"[{seconds:6.1f} s] {who}{text}", markup=False)
                if all(s.state in ENDED for s in summaries):
                    return summaries
                line.update(" | ".join(_progress(s) for s in summaries if s.state not in ENDED))
                time.sleep(_POLL_S)
            except KeyboardInterrupt:
                console.print("stopping: the runs save and leave; `resubmit` goes on with them later")
                LocalCluster().stop(job_id)


def _news(journal: Journal, printed: set[tuple[int, str, int]], since: float) -> list[tuple[float, str]]:
    """Return what was recorded of a run since the last call, and when, in seconds after it was sent."""
    news = []
    for record in journal.records:
        key = (journal.run, record.file, record.seq)
        if key in printed or record.time < since:
            continue
        printed.add(key)
        text = sentence(record.event) if concerns(record.event, journal.run) else None
        if text is not None:
            news.append((record.time - since, text))
    return news


def _progress(summary: RunSummary) -> str:
    loss = "" if summary.loss is None else f", loss {summary.loss:.3f}"
    return f"run {summary.run} {summary.state}: step {summary.step}/{summary.steps}{loss}"
