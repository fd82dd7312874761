"""The documents say what is true: links lead somewhere, and every command of the README is one that works."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_resume.config.load import load_config

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "slurm_templates" / "README.md"])

NOT_RUN_HERE = {
    "make demo": "make -n",
    "make test": "make -n",
    "make venv": "make -n",
    "make check": "make -n",
    "make test-slow": "make -n",
    "make format": "make -n",
    "python3.11 -m venv .venv": "the Makefile's own first line",
    "source .venv/bin/activate": "made by venv itself",
    ".venv/bin/python -m pip install torch==2.13.0": "the Makefile's own second line, without constraints",
    "python -m hpc_resume --help": "tests/test_architecture.py",
    "python -m hpc_resume submit configs/quickstart.yaml": "tests/end_to_end",
    "python -m hpc_resume status runs/quickstart": "tests/cli/test_verbs.py",
    "python -m hpc_resume report runs/quickstart": "tests/cli/test_verbs.py",
    "python -m hpc_resume report runs/first_try": "tests/cli/test_verbs.py",
    "python -m hpc_resume resubmit runs/quickstart": "tests/cli/test_verbs.py",
    "python -m hpc_resume cancel runs/quickstart": "tests/cli/test_verbs.py",
    "python -m hpc_resume run configs/quickstart.yaml": "tests/cli/test_verbs.py",
    "python benchmarks/checkpoint.py --folder DIR": "tests/test_benchmarks.py",
    "python benchmarks/data_position.py": "tests/test_benchmarks.py",
    "python benchmarks/monitor.py": "tests/test_benchmarks.py",
    "python -m hpc_resume export runs/quickstart": "tests/end_to_end/test_result.py",
    "python -m hpc_resume export runs/quickstart --step 200": "tests/cli/test_export.py",
    "python -m hpc_resume backtest old_run/trainer_state.json": "tests/loss_logs/test_formats.py",
    "python -m hpc_resume backtest old_runs --plot pictures": "tests/cli/test_backtest.py",
    "python -m hpc_resume backtest old_runs --set monitor.spike_patience_steps=3 --json": "tests/cli/test_backtest.py",
    "python -m hpc_resume status my_run.yaml": "tests/cli/test_verbs.py",
    "python -m hpc_resume resubmit my_run.yaml": "tests/cli/test_verbs.py",
    "scontrol show config | grep -E 'JobRequeue|KillWait|MaxArraySize|SlurmdTimeout'": "tests/slurm/test_readme.py",
    "scontrol show partition gpu | grep -E 'GraceTime|MaxTime|PreemptMode'": "tests/slurm/test_readme.py",
    "scontrol show job 1234 | grep -o 'Requeue=.'": "tests/slurm/test_readme.py",
    "scancel --batch --signal=INT 1234": "tests/slurm/test_templates.py",
    "cp slurm_templates/one_node.sbatch my_run.sbatch": "tests/slurm/test_templates.py",
    "sbatch my_run.sbatch": "tests/slurm/test_templates.py",
}
"""Commands in code blocks that take too long here, or change something: how, or by which tests, they are held true."""


def blocks(text: str, language: str) -> list[str]:
    """Return the fenced code blocks of a language, also those inside of lists."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```$", text, flags=re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(block) for _, block in found]


def commands(text: str) -> list[str]:
    lines = "".join(blocks(text, "sh")).replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def links(text: str) -> Iterator[str]:
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if not re.match(r"[a-z]+:", target):
            yield target


def anchors(text: str) -> set[str]:
    """Return what the headings of a page are called in a link, as hosts of repositories make it."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in links(page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name} links to {link}"
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), f"{page.name} links to {link}"


def test_the_documents_that_a_repository_has_are_here() -> None:
    names = {page.name for page in PAGES}
    assert {"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "configuration.md"} <= names


def test_every_config_that_the_readme_names_exists() -> None:
    named = set(re.findall(r"configs/[\w./]+\.(?:yaml|json)", README))
    assert named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_every_example_config_is_named_in_the_readme() -> None:
    assert [path.name for path in (ROOT / "configs").glob("*.yaml") if f"configs/{path.name}" not in README] == []


@pytest.fixture
def newcomer(tmp_path: Path) -> Path:
    """A folder as the README has it: our configs, a model, JSONL data, and the config written down there."""
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    (tmp_path / "models" / "my-model").mkdir(parents=True)
    (tmp_path / "models" / "my-model" / "config.json").write_text(
        '{"model_type": "llama", "max_position_embeddings": 4096}'
    )
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.jsonl").write_text('{"text": "' + "word " * 20_000 + '"}\n')
    (tmp_path / "my_run.yaml").write_text(blocks(README, "yaml")[0])
    return tmp_path


SUBMISSIONS = [line for line in commands(README) if line.startswith("python -m hpc_resume submit")]


def dry_run(folder: Path, line: str) -> str:
    """Return what a submission would do, as it is printed."""
    arguments = shlex.split(line)[1:]
    done = subprocess.run(
        [sys.executable, *arguments, *([] if "--dry-run" in arguments else ["--dry-run"])],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"would create {folder}")
    return done.stdout


@pytest.mark.parametrize("line", SUBMISSIONS)
def test_a_submission_in_the_readme_passes_a_dry_run(newcomer: Path, line: str) -> None:
    assert dry_run(newcomer, line)


@pytest.fixture
def much_data(newcomer: Path) -> None:
    """A file that is large enough for many ranks; a dry run does not read it."""
    with (newcomer / "corpus" / "large.jsonl").open("wb") as file:
        file.truncate(10**8)


def test_the_readme_s_config_becomes_a_batch_script_with_its_lines_for_a_cluster(
    newcomer: Path, much_data: None
) -> None:
    path = newcomer / "my_run.yaml"
    here = re.search(r"^cluster:\n(?: .*\n)+", path.read_text(), re.MULTILINE)
    assert here is not None
    path.write_text(path.read_text().replace(here.group(), blocks(README, "yaml")[1]))
    script = dry_run(newcomer, "python -m hpc_resume submit my_run.yaml")
    for option in (
        "partition=gpu",
        "nodes=2",
        "ntasks-per-node=8",
        "cpus-per-task=16",
        "gres=gpu:8",
        "requeue",
        "mem=0",
    ):
        assert re.search(rf"^#SBATCH --{option}$", script, re.MULTILINE), script
    assert "\nmodule load cuda\n" in script


@pytest.mark.parametrize("name", ["a100_1node", "a100_4nodes"])
def test_a_config_for_a_cluster_passes_a_dry_run_once_it_is_filled_in(
    newcomer: Path, much_data: None, name: str
) -> None:
    path = newcomer / "configs" / f"{name}.yaml"
    (comment,) = (line for line in path.read_text().splitlines() if "python -m hpc_resume" in line)
    text = path.read_text().replace("<model>", "my-model")
    path.write_text(re.sub(r"<(\w+)>", r"\1", text))
    script = dry_run(newcomer, comment.removeprefix("#"))
    assert "#SBATCH --gres=gpu:8\n" in script
    assert "#SBATCH --partition=partition\n" in script


def test_the_sizes_in_the_comments_of_the_readme_are_right(newcomer: Path) -> None:
    config = load_config(newcomer / "my_run.yaml")
    assert config.global_batch_size == 32
    assert config.global_batch_size * config.data.sequence_tokens == 65_536
    assert "# 2 ranks x 2 x 8 = 32 samples, 65 536 tokens" in README


def test_the_checkpoints_in_the_readme_can_be_put_into_a_config(newcomer: Path) -> None:
    path = newcomer / "my_run.yaml"
    text, section = path.read_text(), blocks(README, "yaml")[2]
    here = re.search(r"^checkpoints:\n(?: .*\n)+", text, re.MULTILINE)
    assert here is not None
    path.write_text(text.replace(here.group(), section))
    assert load_config(path).checkpoints.interval_steps == "auto"


def test_the_faults_in_the_readme_can_be_put_into_a_config(newcomer: Path) -> None:
    path = newcomer / "my_run.yaml"
    path.write_text(path.read_text() + blocks(README, "yaml")[3])
    assert [fault.kind for fault in load_config(path).faults] == ["spike", "rank_kill", "node_lost"]


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "slurm_templates/README.md"])
def test_every_command_is_known_to_a_test(page: str) -> None:
    tried = set(SUBMISSIONS) | set(NOT_RUN_HERE)
    found = commands((ROOT / page).read_text(encoding="utf-8"))
    assert found
    assert [line for line in found if line not in tried] == []


@pytest.mark.parametrize("line", [line for line, how in NOT_RUN_HERE.items() if how == "make -n"])
def test_a_target_of_make_exists(line: str) -> None:
    target = line.split()[1]
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("place", sorted({how for how in NOT_RUN_HERE.values() if how.startswith("tests/")}))
def test_the_tests_that_hold_commands_true_exist(place: str) -> None:
    assert (ROOT / place).exists()


def test_the_demo_is_the_submission_that_the_readme_shows() -> None:
    done = subprocess.run(["make", "-n", "demo"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert "-m hpc_resume submit configs/quickstart.yaml" in done.stdout
