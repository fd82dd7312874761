"""Every path on disk comes from here; nobody else joins strings."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from hpc_resume.errors import ConfigError


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of one run: `<runs>/<name>/run-0003`."""

    path: Path

    @property
    def index(self) -> int:
        """Number of the run in its array."""
        return int(self.path.name.removeprefix("run-"))

    @property
    def submission(self) -> SubmissionFolder:
        """The folder that holds this run and those submitted with it."""
        return SubmissionFolder(self.path.parent)

    @property
    def journal(self) -> Path:
        """Folder of the journal's files."""
        return self.path / "journal"

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        """Folder of the finished model."""
        return self.path / "model"

    def exported(self, step: int) -> Path:
        """Folder for the model as it was at a step, where a person asks for that."""
        return self.path / f"export-step-{step:09d}"

    @property
    def data(self) -> Path:
        """Token cache; made once, so that every attempt sees the same samples."""
        return self.path / "data"

    @property
    def report(self) -> Path:
        """The report as a page."""
        return self.path / "report.html"

    def claim(self, number: int) -> Path:
        """Journal file of a supervisor."""
        return self.journal / f"claim-{number:04d}.jsonl"

    def attempt(self, number: int) -> Path:
        """Journal file of rank 0 of an attempt."""
        return self.journal / f"attempt-{number:04d}.jsonl"

    def metrics(self, attempt: int) -> Path:
        """One line per step of an attempt; its growth is the heartbeat."""
        return self.path / "metrics" / f"attempt-{attempt:04d}.jsonl"

    def samples(self, attempt: int, rank: int) -> Path:
        """Which samples a rank trained on, if the config asks for it."""
        return self.path / "metrics" / f"attempt-{attempt:04d}.samples-{rank:04d}.jsonl"

    def trace(self, attempt: int, rank: int) -> Path:
        """Digests of a rank's state after every step, if the config asks for it."""
        return self.path / "metrics" / f"attempt-{attempt:04d}.trace-{rank:04d}.jsonl"

    def rank_report(self, attempt: int, rank: int) -> Path:
        """What a rank says of itself: its pid, and why it failed."""
        return self.path / "reports" / f"attempt-{attempt:04d}" / f"rank-{rank:04d}.json"

    def log(self, attempt: int, rank: int) -> Path:
        """Output of a rank."""
        return self.path / "logs" / f"attempt-{attempt:04d}" / f"rank-{rank:04d}.out"

    def launcher_log(self, attempt: int) -> Path:
        """Output of the program that started the ranks."""
        return self.path / "logs" / f"attempt-{attempt:04d}" / "launcher.out"

    def supervisor_log(self) -> Path:
        """Output of the supervisors, one after another."""
        return self.path / "logs" / "supervisor.out"

    @property
    def given_up(self) -> Path:
        """There while a local queue has given this run up and it was not sent again."""
        return self.submission.cluster / f"given-up-{self.index}"


@dataclass(frozen=True, slots=True)
class SubmissionFolder:
    """The folder of one submission: `<runs>/<name>`."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved config; never edited."""
        return self.path / "config.yaml"

    @property
    def provenance(self) -> Path:
        """Which code and packages the runs were submitted with."""
        return self.path / "provenance.json"

    @property
    def cluster(self) -> Path:
        """Files of submitit and of the local queue."""
        return self.path / "cluster"

    def run(self, index: int) -> RunFolder:
        """Folder of one run."""
        return RunFolder(self.path / f"run-{index:04d}")

    def runs(self) -> list[RunFolder]:
        """All runs, by their number."""
        return [RunFolder(p) for p in sorted(self.path.glob("run-[0-9][0-9][0-9][0-9]*"))]

    def operator(self, number: int) -> Path:
        """Journal file of a command that changed something."""
        return self.path / f"operator-{number:04d}.jsonl"


def make_private(path: Path) -> None:
    """Create a folder, and those above it, for the owner only."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)


def refuse_shared(path: Path) -> None:
    """Refuse a folder that others can write to: pickles are loaded from it.

    Raises:
        ConfigError: the folder belongs to somebody else, or its group or everybody may write to it.
    """
    status = path.stat()
    if status.st_uid != os.getuid():
        raise ConfigError(f"{path} belongs to user id {status.st_uid}, not to you; saved state in it is not trusted")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(status.st_mode)
        raise ConfigError(
            f"{path} can be written to by others (mode {mode:o}); saved state is loaded from it, "
            f"so make it yours alone: chmod go-w {path}"
        )
