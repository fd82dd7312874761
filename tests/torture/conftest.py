from __future__ import annotations

import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from supervisor.harness import MARK, end_marked
from support.training import environment
from torture.marks import NAMES, NOTHING

TESTS = Path(__file__).parents[1]
MEMORY = Path("/dev/shm")
LINES = pytest.StashKey[list[str]]()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say of each torture how many of its kills hit inside a save."""
    for line in config.stash.get(LINES, []):
        terminalreporter.write_line(line)


@pytest.fixture(scope="module")
def in_memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in memory, where there is one: a kill leaves the same files there as anywhere, only sooner."""
    if not MEMORY.is_dir():
        yield tmp_path_factory.mktemp("torture")
        return
    with tempfile.TemporaryDirectory(prefix="hpc-resume-torture-", dir=MEMORY) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def torture() -> Callable[..., str]:
    """`torture(program, *arguments)`: run one of the programs beside this file; return its output's last line."""

    def run(program: str, *arguments: object, limit_s: float = 280.0, before: tuple[str, ...] = ()) -> str:
        command = [*before, sys.executable, "-m", f"torture.{program}", *map(str, arguments)]
        mark = uuid.uuid4().hex
        try:
            done = subprocess.run(
                command,
                env={**environment(), MARK: mark},
                cwd=TESTS,
                capture_output=True,
                text=True,
                timeout=limit_s,
                check=False,
            )
        finally:
            left = end_marked(mark)
        assert done.returncode == 0, f"{' '.join(command)} in {TESTS}:\n{done.stderr}"
        assert left == [], "processes were left behind"
        return done.stdout.splitlines()[-1]

    return run


@pytest.fixture
def report(request: pytest.FixtureRequest, pytestconfig: pytest.Config) -> Callable[[list[int]], None]:
    """`report(hits)`: say how many kills there were, and where in a save they hit."""

    def say(hits: list[int]) -> None:
        inside = ", ".join(f"{hits.count(where)} {NAMES[where]}" for where in range(1, len(NAMES)))
        count = len(hits) - hits.count(NOTHING)
        line = f"torture: {len(hits)} kills, of which {count} inside a save ({inside}), all recovered"
        sys.stdout.write(f"{line}\n")
        pytestconfig.stash.setdefault(LINES, []).append(f"{request.node.name}: {line}")

    return say
