"""Attaching a supervisor to a run's folder, which is created on first use."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

from hpc_resume.cli.submission import create_submission, no_submission
from hpc_resume.cluster.base import EXIT_REQUEUED
from hpc_resume.cluster.local_allocation import JOB_ID, RESTART_COUNT, LocalAllocation
from hpc_resume.cluster.processes import tie_to_parent
from hpc_resume.config import load_run
from hpc_resume.config.check import check_before_submit
from hpc_resume.config.load import dump_config, load_config
from hpc_resume.config.schema import RunConfig
from hpc_resume.errors import ConfigError
from hpc_resume.journal.folder import RunFolder, SubmissionFolder
from hpc_resume.supervisor import supervise


def attach(target: Path, overrides: list[str], index: int) -> tuple[RunFolder, RunConfig]:
    """Return the folder and config of a run.

    Raises:
        ConfigError: the folder there was made from another config, or there is no such run.
    """
    if target.is_dir():
        folder = SubmissionFolder(target.resolve())
        if not folder.config.exists():
            raise no_submission(target)
        if overrides:
            raise ConfigError(f"{target} has its config already; settings like {overrides[0]} can't be changed now")
        return folder.run(index), load_run(folder.config, index)
    config = load_config(target, overrides)
    folder = SubmissionFolder(Path(config.runs_dir) / config.name)
    if not folder.path.exists():
        check_before_submit(config)
        try:
            create_submission(config)
        except ConfigError:
            # Another element of the same array may have been faster; then its folder is compared like any other.
            if not folder.path.exists():
                raise
    if not folder.config.exists():
        raise no_submission(folder.path)
    if folder.config.read_text(encoding="utf-8") != dump_config(config):
        raise ConfigError(
            f"{folder.path} was made from another config than {target} now is (compare {folder.config}); "
            "choose another name (name=...), or take the changes back"
        )
    return folder.run(index), load_run(folder.config, index)


def run_here(folder: RunFolder, config: RunConfig) -> int:
    """Supervise a run on this machine; without a queue above, a requeue starts a new supervisor at once."""
    if os.environ.get(JOB_ID):
        return supervise(folder, config, LocalAllocation())
    command = [sys.executable, "-m", "hpc_resume", "run", str(folder.submission.path), "--index", str(folder.index)]
    restarts = 0
    stop = _Stop()
    while True:
        code = _supervise_in_child(command, restarts, stop)
        if code != EXIT_REQUEUED or stop.heard:
            return code
        restarts += 1


class _Stop:
    """Passes a request to stop on to the supervisor; Ctrl-C reaches that from the terminal as well."""

    def __init__(self) -> None:
        self.heard = False
        self.process: subprocess.Popen[bytes] | None = None
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.heard = True
        if number == signal.SIGTERM and self.process is not None:
            self.process.send_signal(signal.SIGTERM)


def _supervise_in_child(command: list[str], restarts: int, stop: _Stop) -> int:
    environment = {**os.environ, JOB_ID: f"run-{os.getpid()}", RESTART_COUNT: str(restarts)}
    # Killed, this process could not start the supervisor again after a requeue; so that stops cleanly then.
    tie = functools.partial(tie_to_parent, os.getpid(), signal.SIGTERM)
    with subprocess.Popen(command, env=environment, preexec_fn=tie) as process:  # noqa: PLW1509 (one thread)
        stop.process = process
        if stop.heard:
            process.terminate()  # it was asked to stop while this one was starting
        code = process.wait()
        return code if code >= 0 else 128 - code
