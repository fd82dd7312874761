from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from supervisor.harness import ScriptedRun, scripted_runs

HERE = Path(__file__).parent


class StubbedQueue:
    """A local queue in a process of its own, whose supervisors do what they are told."""

    def __init__(self, run: ScriptedRun, words: list[list[str]], parallelism: int, pause_s: float) -> None:
        self.run = run
        self.home = run.folder.submission.path
        (self.home / "script.json").write_text(json.dumps(words))
        for index in range(len(words)):
            run.folder.submission.run(index).journal.mkdir(parents=True, exist_ok=True)
        runs = json.dumps(list(range(len(words))))
        arguments = [str(HERE / "run_queue.py"), str(self.home), str(parallelism), runs]
        self.process: subprocess.Popen[str] = run.start_command(
            [*arguments, str(HERE / "stub_supervisor.py"), str(pause_s)]
        )

    @property
    def happened(self) -> list[str]:
        path = self.home / "happened"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def log(self) -> str:
        """What the queue said."""
        path = self.home / "cluster" / "queue.out"
        return path.read_text() if path.exists() else ""

    def starts(self) -> list[int]:
        """The runs in the order in which they were started."""
        return [int(line.split()[1]) for line in self.happened if line.startswith("start")]


@pytest.fixture
def scripted_run(tmp_path: Path) -> Iterator[Callable[..., ScriptedRun]]:
    """`scripted_run(*actions, **settings)`: a run whose ranks follow a script; nothing of it outlives the test."""
    with scripted_runs(tmp_path) as make:
        yield make


@pytest.fixture
def queue(scripted_run: Callable[..., ScriptedRun]) -> Callable[..., StubbedQueue]:
    """`queue([words of run 0], [words of run 1], ..., parallelism=1)`; see stub_supervisor.py for the words."""

    def make(*words: list[str], parallelism: int = 1, pause_s: float = 0.01) -> StubbedQueue:
        return StubbedQueue(scripted_run(), list(words), parallelism, pause_s)

    return make
