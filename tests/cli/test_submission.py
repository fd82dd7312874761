"""The folder of a submission appears whole or not at all, whoever else makes it at the same time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_resume.cli import submission
from hpc_resume.cli.attach import attach
from hpc_resume.cli.submission import create_submission
from hpc_resume.config.load import load_config
from hpc_resume.errors import ConfigError


def test_nobody_ever_sees_half_of_a_folder(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = config.parent / "runs" / "small"
    seen: list[bool] = []
    # In the middle of making it.
    monkeypatch.setattr(submission, "_provenance", lambda: {"seen": seen.append(path.exists())})
    folder = create_submission(load_config(config))
    assert seen == [False]
    assert (folder.path, folder.config.exists(), folder.run(0).journal.is_dir()) == (path, True, True)
    assert [p.name for p in path.parent.iterdir()] == ["small"]
    assert [oct(p.stat().st_mode & 0o777) for p in (path, folder.run(0).path)] == ["0o700", "0o700"]


def test_an_interruption_leaves_nothing(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(submission, "_provenance", interrupt)
    with pytest.raises(KeyboardInterrupt):
        create_submission(load_config(config))
    assert list((config.parent / "runs").iterdir()) == []


def test_what_a_kill_left_half_made_is_in_nobodys_way(config: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from hpc_resume.cli import submission;"
        "from hpc_resume.config.load import load_config;"
        "submission._provenance = lambda: os.kill(os.getpid(), signal.SIGKILL);"
        "submission.create_submission(load_config(Path(sys.argv[1])))"
    )
    assert subprocess.run([sys.executable, "-c", code, str(config)], check=False).returncode == -signal.SIGKILL
    (left,) = (config.parent / "runs").iterdir()
    assert left.name.startswith(".small.")
    assert create_submission(load_config(config)).config.exists()


def while_another_element_is_faster(
    monkeypatch: pytest.MonkeyPatch, config: Path, overrides: list[str], provenance: object
) -> None:
    """Have the folder made by somebody else in the middle of making it."""

    def interfere() -> object:
        monkeypatch.setattr(submission, "_provenance", lambda: provenance)
        create_submission(load_config(config, overrides))
        return provenance

    monkeypatch.setattr(submission, "_provenance", interfere)


def test_two_elements_of_an_array_can_make_the_folder_at_the_same_time(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    while_another_element_is_faster(monkeypatch, config, [], {"pid": os.getpid()})
    folder, loaded = attach(config, [], 0)
    assert folder.path == config.parent / "runs" / "small" / "run-0000"
    assert loaded.training.steps == 8
    assert [p.name for p in (config.parent / "runs").iterdir()] == ["small"]


def test_but_not_from_two_configs(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    while_another_element_is_faster(monkeypatch, config, ["training.steps=9"], {})
    with pytest.raises(ConfigError, match="was made from another config"):
        attach(config, [], 0)


def test_a_folder_of_somebody_else_with_that_name_is_refused(config: Path) -> None:
    (config.parent / "runs" / "small" / "holiday").mkdir(parents=True)
    with pytest.raises(ConfigError, match="exists already"):
        create_submission(load_config(config))
    with pytest.raises(ConfigError, match="is not the folder of a submission"):
        attach(config, [], 0)
    assert [p.name for p in (config.parent / "runs").iterdir()] == ["small"]
