"""Job arrays whose elements follow scripts of their own, and a close look at how they stand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from slurm.cluster import MiniSlurm
from slurm.runs import SlurmRuns, hpc_resume, scripted_config

from hpc_resume.cli.submission import find_target
from hpc_resume.journal.reader import read_operator
from hpc_resume.recovery import events as ev
from hpc_resume.reporting.summary import summarize_submission

Action = dict[str, Any]


class Elements(SlurmRuns):
    """One submission; each of its runs exchanges words of its own with the test."""

    def say_to(self, index: int, word: str) -> None:
        """Let the ranks of a run go on that wait for this word."""
        (self.home_of(index) / word).touch()

    def wait_to_hear(self, index: int, word: str) -> None:
        """Wait until a rank of a run says this."""
        self.wait((self.home_of(index) / word).exists, f"run {index} says {word!r}")

    def home_of(self, index: int) -> Path:
        """Where the script of a run lies."""
        return self.home / self.run(index).path.name

    def name_of(self, index: int = 0) -> str:
        """The job of a run that `submit` sent, as Slurm's programs take it."""
        sent = next(r.event.job_id for r in read_operator(self.folder) if isinstance(r.event, ev.OperatorOutcome))
        return f"{sent}_{index}" if len(self.folder.runs()) > 1 else sent

    def in_slurm(self, index: int = 0) -> dict[str, str]:
        """What the controller knows of that job."""
        array, _, task = self.name_of(index).partition("_")
        wanted = {"ArrayJobId": array, "ArrayTaskId": task} if task else {"JobId": array}
        return next(job for job in self.cluster.jobs() if wanted.items() <= job.items())

    def states(self) -> list[str]:
        """What `status` says of all runs."""
        found = json.loads(self.command("status", str(self.folder.path), "--json").stdout)
        return [each["state"] for each in found]

    def watch_states(self, monkeypatch: pytest.MonkeyPatch, until: Callable[[], object], what: str) -> list[list[str]]:
        """Look at `status` without a pause until something holds; return the states of each run, one after another.

        It is not the command but what is behind that, which takes a tenth of its time.
        """
        for name in ("PATH", "SLURM_CONF"):
            monkeypatch.setenv(name, self.cluster.environment()[name])
        states: list[list[str]] = [[] for _ in self.folder.runs()]

        def look() -> bool:
            for seen, summary in zip(states, summarize_submission(self.folder), strict=True):
                if seen[-1:] != [summary.state]:
                    seen.append(summary.state)
            return bool(until())

        self.wait(look, what)
        return states


def submit_elements(cluster: MiniSlurm, home: Path, *scripts: list[Action], **changes: Any) -> Elements:
    """Submit an array with an element for each script."""
    sweep = {"sweep": {"seed": list(range(len(scripts)))}} if len(scripts) > 1 else {}
    config = scripted_config(home, **sweep, **changes)
    common = json.loads((home / "script.json").read_text(encoding="utf-8"))
    for index, actions in enumerate(scripts):
        own = home / f"run-{index:04d}"
        own.mkdir()
        (own / "script.json").write_text(json.dumps({**common, "actions": actions}), encoding="utf-8")
    hpc_resume(cluster, "submit", str(config))
    return Elements(cluster, find_target(config)[0], config, home)
