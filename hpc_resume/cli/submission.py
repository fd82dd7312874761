"""Making a submission's folder and handing its runs to a cluster; the intent is recorded first."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from hpc_resume.cluster.choose import make_cluster
from hpc_resume.cluster.liveness import JobBook
from hpc_resume.cluster.slurm_commands import SilentError
from hpc_resume.config.load import dump_config, load_config
from hpc_resume.config.schema import RunConfig
from hpc_resume.config.sweep import expand
from hpc_resume.errors import ClusterError, ConfigError
from hpc_resume.journal.folder import RunFolder, SubmissionFolder, make_private
from hpc_resume.journal.reader import numbers
from hpc_resume.journal.writer import JournalWriter, sync_file, sync_folder
from hpc_resume.recovery import events as ev

_PACKAGES = ("hpc_resume", "torch", "deepspeed", "transformers", "accelerate", "submitit")


def create_submission(config: RunConfig) -> SubmissionFolder:
    """Create the folder of a submission with its resolved config and a folder for each run.

    It is made under another name and then renamed, so that nobody ever sees half of it.

    Raises:
        ConfigError: there is such a folder already, or it can't be made.
    """
    path = Path(config.runs_dir) / config.name
    folder = SubmissionFolder(path)
    if path.exists():
        raise _taken(path)
    try:
        Path(config.runs_dir).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"can't create {config.runs_dir}: {error.strerror}; set runs_dir to a folder you can write to"
        ) from error
    try:
        half_made = Path(tempfile.mkdtemp(prefix=f".{config.name}.", suffix=".tmp", dir=config.runs_dir))
        try:
            _fill(SubmissionFolder(half_made), config)
            half_made.rename(path)
        except BaseException:
            shutil.rmtree(half_made, ignore_errors=True)
            raise
        sync_folder(path.parent)
    except OSError as error:
        if path.exists():
            raise _taken(path) from None
        raise ConfigError(
            f"can't create {path}: {error.strerror}; set runs_dir to a folder you can write to"
        ) from error
    return folder


def _fill(folder: SubmissionFolder, config: RunConfig) -> None:
    for index in range(len(expand(config))):
        run = folder.run(index)
        for sub in (run.path, run.journal, run.checkpoints):
            make_private(sub)
    folder.config.write_text(dump_config(config), encoding="utf-8")
    folder.provenance.write_text(json.dumps(_provenance(), indent=1) + "\n", encoding="utf-8")
    for file in (folder.config, folder.provenance):
        sync_file(file)
    sync_folder(folder.path)


def _taken(path: Path) -> ConfigError:
    return ConfigError(
        f"{path} exists already; choose another name (name=...), delete it, "
        f"or go on with its runs: python -m hpc_resume resubmit {path}"
    )


def find_target(target: Path) -> tuple[SubmissionFolder, int | None]:
    """Return the submission that a user means by its folder or config file; by a run's folder, that run alone.

    Raises:
        ConfigError: there is none.
    """
    path, run = target, None
    if target.is_file():
        config = load_config(target)
        path = Path(config.runs_dir) / config.name
        if not path.exists():
            raise ConfigError(
                f"{target} describes the folder {path}, which does not exist: it was not submitted yet, or under "
                "another name; name the submission's folder"
            )
    elif not (target / "config.yaml").exists() and re.fullmatch(r"run-\d{4,}", target.resolve().name):
        # Resolved, so that `.` inside of a run's folder means that run.
        above = target.resolve().parent
        if target.is_dir() and (above / "config.yaml").exists():
            path, run = above, RunFolder(target.resolve()).index
    if not (path / "config.yaml").exists():
        raise no_submission(path)
    return SubmissionFolder(path.resolve()), run


def refuse_edited(target: Path, folder: SubmissionFolder) -> None:
    """Refuse a config file that says something else than what was submitted: runs keep their settings.

    Raises:
        ConfigError: it does.
    """
    if target.is_file() and dump_config(load_config(target)) != folder.config.read_text(encoding="utf-8"):
        raise ConfigError(
            f"{target} is not what was submitted, and runs keep their settings (compare {folder.config}): to go on "
            f"with those name the folder, {folder.path}; to have others, `submit` under another name (name=...)"
        )


def no_submission(path: Path) -> ConfigError:
    """Say that a path is not the folder of a submission."""
    found = "is not the folder of a submission (it has no config.yaml)" if path.exists() else "does not exist"
    return ConfigError(f"{path} {found}; name such a folder, like runs/quickstart, or the YAML file that was submitted")


def record_operator(folder: SubmissionFolder, intent: ev.Event) -> JournalWriter:
    """Record what a command is about to do, in a file of its own."""
    while True:
        number = newest_command(folder) + 1
        if isinstance(intent, ev.CancelRequested):
            intent = replace(intent, operator=number)
        try:
            return JournalWriter(folder.operator(number), intent)
        except FileExistsError:
            continue  # another command was faster; take the next number


def newest_command(folder: SubmissionFolder) -> int:
    """Return the number of the newest command that changed something; 0 if there was none."""
    return max(numbers(folder.path, "operator"), default=0)


def send(
    folder: SubmissionFolder,
    config: RunConfig,
    kind: str,
    intent: ev.Submitted | ev.ResubmitRequested,
    *,
    new: bool,
    book: JobBook | None = None,
) -> str:
    """Record the intent, hand the runs to the cluster, record the outcome; return the job's id.

    If the cluster refuses a `new` submission, its folder is taken back: nothing half-made stays. Where it is silent
    there may be a job all the same, and then that needs its folder. `book` may know already which Slurm this is.
    """
    with closing(record_operator(folder, intent)) as writer:
        # Asked before the job exists: nothing may delay the record of its number.
        slurm_cluster = _slurm_cluster(config, book or JobBook()) if kind == "slurm" else ""
        try:
            job_id = make_cluster(kind).submit(folder, list(intent.runs), config)
        except (ClusterError, ConfigError) as error:
            writer.record(ev.OperatorOutcome(ok=False, job_id="", message=str(error)))
            if new and not isinstance(error, SilentError):
                shutil.rmtree(folder.path)
            raise
        writer.record(ev.OperatorOutcome(ok=True, job_id=job_id, message="submitted", slurm_cluster=slurm_cluster))
        return job_id


def _slurm_cluster(config: RunConfig, book: JobBook) -> str:
    """Return the name of the Slurm that a job will be sent to; empty if that can't be known."""
    chosen = config.cluster.sbatch.get("clusters")
    if chosen:
        return chosen if isinstance(chosen, str) and "," not in chosen else ""
    try:
        return book.slurm_cluster()
    except SilentError:
        return ""


def _provenance() -> dict[str, object]:
    packages = {}
    for name in _PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = "not installed"
    return {
        "command": sys.argv,
        "folder": str(Path.cwd()),
        "commit": _git("rev-parse", "HEAD"),
        "uncommitted_changes": bool(_git("status", "--porcelain")),
        "python": sys.version.split()[0],
        "packages": packages,
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "user": os.environ.get("USER", ""),
    }


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
