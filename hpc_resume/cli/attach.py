"""Attaching a supervisor to a run's folder, which is created on first use."""

from __future__ import annotations

import functools
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

from hpc_resume.cli.submission import create_submission, no_submission, send
from hpc_resume.cluster.base import EXIT_REQUEUED
from hpc_resume.cluster.choose import kind_here, make_allocation
from hpc_resume.cluster.local_allocation import JOB_ID, RESTART_COUNT
from hpc_resume.cluster.processes import node_name, tie_to_parent
from hpc_resume.cluster.slurm_allocation import NotRequeuedError, SlurmAllocation, is_in_job, is_started_again
from hpc_resume.config import load_run
from hpc_resume.config.check import check_before_submit
from hpc_resume.config.cluster_section import ClusterConfig
from hpc_resume.config.load import dump_config, load_config
from hpc_resume.config.schema import RunConfig
from hpc_resume.errors import ConfigError, HpcResumeError, JournalError, RunBusyError
from hpc_resume.journal.folder import RunFolder, SubmissionFolder
from hpc_resume.journal.patience import patiently
from hpc_resume.journal.reader import read_journal
from hpc_resume.recovery.events import Submitted
from hpc_resume.supervisor import supervise

_log = logging.getLogger(__name__)
_MAX_RESTARTS = 5
"""Starts in a row without an attempt after which a job is not put back into the queue."""


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
        check_before_submit(config, kind_here(config.cluster))
        try:
            create_submission(config)
        except ConfigError:
            # Another element of the same array may have been faster; then its folder is compared like any other.
            if not folder.path.exists():
                raise
    if not folder.config.exists():
        raise no_submission(folder.path)
    if folder.config.read_text(encoding="utf-8") != dump_config(config):
        if is_started_again(os.environ):
            # A person's edit must not end a run that Slurm has just started again; what it began with still counts.
            _log.warning("%s has changed since this job was sent; going on with %s", target, folder.config)
            return folder.run(index), load_run(folder.config, index)
        raise ConfigError(
            f"{folder.path} was made from another config than {target} now is (compare {folder.config}); "
            "choose another name (name=...), or take the changes back"
        )
    return folder.run(index), load_run(folder.config, index)


def run_target(target: Path, overrides: list[str], index: int) -> int:
    """Supervise the run that is meant, in this Slurm job or on this machine; return the exit code.

    Raises:
        ConfigError: the folder there was made from another config, there is no such run, or the config asks for a
            Slurm job, and this is none, or one that does not fit.
        RunBusyError: somebody else owns the run.
    """
    try:
        # A job that has its nodes can wait for a disk; a person at a terminal wants to hear at once.
        find = patiently(attach) if is_in_job(os.environ) else attach
        folder, config = find(target, overrides, index)
        allocation = make_allocation(config.cluster)
    except (HpcResumeError, OSError) as error:
        # A file that is there and wrong is as wrong on any other node.
        wrong = isinstance(error, ConfigError) and target.exists()
        if wrong or not is_started_again(os.environ):
            raise
        return _go_elsewhere(error)
    if isinstance(allocation, SlurmAllocation):
        return _run_in_job(folder, config, allocation)
    if os.environ.get(JOB_ID):
        return supervise(folder, config, allocation)
    return _run_without_queue(folder)


def _go_elsewhere(error: Exception) -> int:
    """Leave a node on which a run that went well before can't even be found, as long as there are others."""
    allocation = SlurmAllocation(ClusterConfig())
    if not allocation.can_avoid(node_name()):
        raise error
    _log.warning("this node can't be used, going to another one: %s", error)
    allocation.requeue((node_name(),))
    return EXIT_REQUEUED


def _run_in_job(folder: RunFolder, config: RunConfig, allocation: SlurmAllocation) -> int:
    """Supervise in a Slurm job; whatever goes wrong with that, the job goes back to the queue, or another is sent."""
    try:
        return supervise(folder, config, allocation)
    except (RunBusyError, ConfigError):
        raise
    except Exception as error:
        # Slurm starts nothing again by itself that ended by itself.
        if _is_fruitless(folder, allocation.restart_count):
            _log.exception("given up: the last %d starts led to no attempt", _MAX_RESTARTS)
            raise
        try:
            if isinstance(error, NotRequeuedError):
                raise
            _log.warning("putting the job back into the queue: %s", error)
            allocation.requeue()
        except NotRequeuedError as refused:
            _log.warning("sending a new job: %s", refused)
            job_id = send(
                folder.submission, config, "slurm", Submitted(runs=(folder.index,), cluster="slurm"), new=False
            )
            _log.info("sent run %d as job %s", folder.index, job_id)
        return EXIT_REQUEUED


def _is_fruitless(folder: RunFolder, restart_count: int) -> bool:
    """Tell whether the last supervisors, this one among them, never got as far as an attempt."""
    try:
        history = read_journal(folder).history
    except (JournalError, OSError):
        return restart_count >= _MAX_RESTARTS
    newest = history.attempts[-1].started.claim if history.attempts else 0
    return sum(claim.request.claim > newest for claim in history.claims) >= _MAX_RESTARTS


def _run_without_queue(folder: RunFolder) -> int:
    """Supervise on this machine; without a queue above, a requeue starts a new supervisor at once."""
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
