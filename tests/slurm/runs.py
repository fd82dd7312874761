"""Submissions to a test cluster, sent and looked at with the command line as a person would."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml
from slurm.cluster import MiniSlurm
from support.training import Outcome, make_config

from hpc_resume.cli.submission import find_target
from hpc_resume.journal.folder import RunFolder, SubmissionFolder
from hpc_resume.journal.metrics import newest_rows
from hpc_resume.journal.reader import Journal, read_journal
from hpc_resume.recovery import History
from hpc_resume.recovery import events as ev
from hpc_resume.recovery.policy import Policy
from hpc_resume.reporting.summary import ENDED

SCRIPTED_WORKER = Path(__file__).parents[1] / "supervisor" / "scripted_worker.py"
LIMIT_S = 120.0
QUIET = {"monitor__spike_patience_steps": 1000, "monitor__slow_rises": "record"}
"""A monitor that lets everything pass: for runs whose loss is not the matter."""


@dataclass
class SlurmRuns:
    """One submission on a test cluster."""

    cluster: MiniSlurm
    folder: SubmissionFolder
    config: Path
    home: Path
    """Where the script of scripted ranks lies, and the words that they exchange with the test."""
    changes: list[str] = field(default_factory=list)

    def run(self, index: int = 0) -> RunFolder:
        """One run's folder."""
        return self.folder.run(index)

    def outcome(self, index: int = 0) -> Outcome:
        """What the tests of real trainings look at."""
        return Outcome(0, "", self.folder, index)

    def step(self, index: int = 0) -> int:
        """The newest step of a run's newest attempt that has reached the disk; 0 before the first."""
        attempts = self.history(index).attempts
        metrics = self.run(index).metrics(attempts[-1].started.attempt) if attempts else None
        row = next(newest_rows(metrics), None) if metrics is not None else None
        return int(row["step"]) if row is not None else 0

    def journal(self, index: int = 0) -> Journal:
        """What one run recorded."""
        return read_journal(self.run(index))

    def history(self, index: int = 0) -> History:
        """What that comes to."""
        return self.journal(index).history

    def events(self, kind: type[Any], index: int = 0) -> list[Any]:
        """All events of a kind, in the journal's order."""
        return [record.event for record in self.journal(index).records if isinstance(record.event, kind)]

    def causes(self, index: int = 0) -> list[str]:
        """Why each attempt ended."""
        return [event.cause for event in self.events(ev.AttemptEnded, index)]

    def command(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run `python -m hpc_resume` as the cluster's user."""
        return hpc_resume(self.cluster, *arguments, check=check)

    def status(self, index: int = 0) -> dict[str, Any]:
        """What `status --json` says of one run."""
        found = json.loads(self.command("status", str(self.folder.path), "--json").stdout)
        return next(each for each in found if each["run"] == index)

    def job(self, index: int = 0) -> str:
        """The newest job of a run, as `scontrol` takes it."""
        return str(self.status(index)["job"])

    def nodes(self, index: int = 0) -> tuple[str, ...]:
        """The nodes of the newest attempt; the first one is the batch host."""
        return tuple(self.events(ev.AttemptStarted, index)[-1].nodes)

    def wait(self, condition: Callable[[], object], what: str, limit_s: float = LIMIT_S) -> None:
        """Wait until it holds."""
        self.cluster.wait_for(condition, what, limit_s)

    def wait_for_event(self, kind: type[Any], count: int = 1, index: int = 0, limit_s: float = LIMIT_S) -> None:
        """Wait until a run's journal holds so many events of a kind."""
        self.wait(lambda: len(self.events(kind, index)) >= count, f"{count} x {kind.__name__} in run {index}", limit_s)

    def wait_for_step(self, step: int, index: int = 0, limit_s: float = LIMIT_S) -> None:
        """Wait until a run's newest attempt has trained this step."""
        self.wait(lambda: self.step(index) >= step, f"run {index} at step {step}", limit_s)

    def wait_for_state(self, *states: str, index: int = 0, limit_s: float = LIMIT_S) -> str:
        """Wait until a run is in one of these states; return it."""
        found: dict[str, Any] = {}

        def arrived() -> bool:
            found.update(self.status(index))
            assert found["state"] in states or found["state"] not in ENDED, f"run {index}: {found}"
            return found["state"] in states

        self.wait(arrived, f"run {index} {' or '.join(states)}", limit_s)
        return str(found["state"])

    def say(self, word: str) -> None:
        """Let scripted ranks go on that wait for this word."""
        (self.home / word).touch()

    def wait_for_word(self, word: str) -> None:
        """Wait until a scripted rank says this."""
        self.wait((self.home / word).exists, f"a rank says {word!r}")


def start_hpc_resume(cluster: MiniSlurm, *arguments: str) -> subprocess.Popen[str]:
    """Start `python -m hpc_resume` as the cluster's user."""
    environment = {**cluster.environment(), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(
        [sys.executable, "-m", "hpc_resume", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def hpc_resume(cluster: MiniSlurm, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run `python -m hpc_resume` as the cluster's user, to its end."""
    process = start_hpc_resume(cluster, *arguments)
    output, errors = process.communicate(timeout=LIMIT_S)
    done = subprocess.CompletedProcess(process.args, process.returncode, output, errors)
    assert not check or done.returncode == 0, f"{arguments} ended with {done.returncode}: {errors}{output}"
    return done


def write_config(folder: Path, **changes: Any) -> Path:
    """Write the config of a tiny training for the test cluster: two nodes with a rank each, unless changed."""
    folder.mkdir(parents=True, exist_ok=True)
    values = {
        "cluster__kind": "slurm",
        "cluster__nodes": 2,
        "cluster__ranks_per_node": 1,
        "cluster__gpus_per_node": 0,
        "cluster__walltime_min": 30,
        **changes,
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(make_config(folder, **values)), encoding="utf-8")
    return path


def python_without_gpus(folder: Path) -> str:
    """Make a Python that hides the GPUs which the cluster's nodes only claim to have; Slurm undoes it in a job."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "python-without-gpus"
    path.write_text(f'#!/bin/sh\nCUDA_VISIBLE_DEVICES= exec {sys.executable} "$@"\n', encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def submit(cluster: MiniSlurm, folder: Path, **changes: Any) -> SlurmRuns:
    """Submit a tiny real training; `changes` are dotted keys, with `__` for the dot."""
    config = write_config(folder, **changes)
    hpc_resume(cluster, "submit", str(config))
    return SlurmRuns(cluster, find_target(config)[0], config, folder)


def scripted_config(folder: Path, *actions: dict[str, Any], **changes: Any) -> Path:
    """Write the config of a training whose ranks follow a script; see tests/supervisor/scripted_worker.py.

    `steps`, `save_every` and `certify_after` belong to the script, everything else to the config.
    """
    folder.mkdir(parents=True, exist_ok=True)
    script = {"steps": 12, "save_every": 2, "certify_after": 2}
    script |= {name: changes.pop(name) for name in list(script) if name in changes}
    rules = {"rollback_margin_steps": 1, **changes.pop("recovery", {})}
    policy = Policy(**{**rules, "perturb_on": tuple(rules.get("perturb_on", ("loss", "node")))})
    values = {**script, "policy": asdict(policy), "actions": list(actions)}
    (folder / "script.json").write_text(json.dumps(values), encoding="utf-8")
    python = folder / "scripted-python"
    python.write_text(
        f'#!/bin/sh\nexport SCRIPT_HOME={folder}\nshift 2\nexec {sys.executable} {SCRIPTED_WORKER} "$@"\n',
        encoding="utf-8",
    )
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    return write_config(
        folder,
        **{"recovery": rules, "training__steps": script["steps"], "cluster__python": str(python), **changes},
    )


def submit_scripted(cluster: MiniSlurm, folder: Path, *actions: dict[str, Any], **changes: Any) -> SlurmRuns:
    """Submit a training whose ranks follow a script: everything is real but the model."""
    config = scripted_config(folder, *actions, **changes)
    hpc_resume(cluster, "submit", str(config))
    return SlurmRuns(cluster, find_target(config)[0], config, folder)


def incarnations(cluster: MiniSlurm, job_id: str) -> list[str]:
    """How each start of a job ended, as the accounting knows it."""
    text = cluster.run("sacct", "-n", "-P", "-X", "--duplicates", "-j", job_id, "-o", "State")
    return [line.split()[0] for line in text.splitlines() if line.strip()]


def is_root() -> bool:
    """Tell whether this process may do what an administrator does."""
    return os.getuid() == 0
