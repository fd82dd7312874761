"""What holds the design together, beyond what each part does."""

from __future__ import annotations

import ast
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_resume.recovery.reference import render

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "hpc_resume"
MODULES = sorted(PACKAGE.rglob("*.py"))

HEAVY = ("torch", "deepspeed", "accelerate", "transformers", "submitit", "matplotlib")
"""What takes seconds to import, or needs a GPU's libraries."""

TABLES = {"recovery/history.py:apply"}
"""Functions that are one `match` with a case for each kind of event: long, and easier to read whole."""


def output_of(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


def test_the_import_contracts_hold() -> None:
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run(
        [sys.executable, "-c", program, "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout
    assert "3 kept, 0 broken" in done.stdout


@pytest.mark.parametrize(
    "code",
    [
        "import sys, runpy; sys.argv = ['hpc_resume', '--help']\n"
        "try: runpy.run_module('hpc_resume', run_name='__main__')\n"
        "except SystemExit: pass\n",
        "import hpc_resume.supervisor, hpc_resume.cluster.local_allocation, hpc_resume.cluster.torchrun\n",
        "import hpc_resume.cli.attach, hpc_resume.cli.output, hpc_resume.cli.submission, hpc_resume.cli.choose_runs\n",
        "import hpc_resume.reporting.follow, hpc_resume.reporting.report, hpc_resume.reporting.page\n",
    ],
    ids=["--help", "the supervisor", "the command line", "the reports"],
)
def test_nothing_heavy_is_imported_by(code: str) -> None:
    report = "import sys; sys.stderr.write(''); print('loaded:', *sorted({m.partition('.')[0] for m in sys.modules}))"
    loaded = output_of(f"{code}\n{report}").splitlines()[-1].split()
    assert loaded[0] == "loaded:"
    assert "hpc_resume" in loaded
    assert not set(loaded) & set(HEAVY)


def test_help_costs_at_most_eight_starts_of_an_empty_python() -> None:
    # CPU time and the minimum of interleaved runs, so that a busy machine does not decide.
    empty, helped = [], []
    for _ in range(5):
        empty.append(_cpu_seconds("-c", "pass"))
        helped.append(_cpu_seconds("-m", "hpc_resume", "--help"))
    assert min(helped) <= 8 * min(empty)


def _cpu_seconds(*arguments: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], cwd=ROOT, check=True, stdout=subprocess.DEVNULL, timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_every_package_says_what_its_rule_is() -> None:
    for path in PACKAGE.rglob("__init__.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), f"{path} has no docstring"


def test_modules_stay_below_400_lines() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in MODULES}
    assert {path: length for path, length in lengths.items() if length >= 400} == {}


def test_functions_stay_below_60_lines() -> None:
    long = {name for name, length in _functions() if length >= 60}
    assert long == TABLES


def _functions() -> Iterator[tuple[str, int]]:
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                yield f"{path.relative_to(PACKAGE)}:{node.name}", node.end_lineno - node.lineno + 1


def test_the_table_of_rules_in_the_architecture_is_that_of_the_code() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert render() in page, "paste what `python -m hpc_resume.recovery.reference` prints"


def test_the_architecture_names_every_module() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    for path in MODULES:
        if not path.name.startswith("__"):
            assert f"`{path.relative_to(PACKAGE)}`" in page, f"{path} has no line in ARCHITECTURE.md"
