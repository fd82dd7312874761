"""The commit protocol on two real DeepSpeed ranks: all of them commit, or none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.training import environment

from hpc_resume.checkpoints import catalog

pytestmark = pytest.mark.deepspeed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where two ranks have saved and loaded, and left word of what they saw."""
    path = tmp_path_factory.mktemp("store")
    script = Path(__file__).with_name("store_ranks.py")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=0"]
    done = subprocess.run(
        [sys.executable, *launcher, str(script), str(path)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return path


def said(folder: Path, what: str) -> list[str]:
    return [json.loads((folder / f"said-{rank}.json").read_text(encoding="utf-8"))[what] for rank in (0, 1)]


def test_a_save_is_committed_on_all_ranks_with_every_file_in_its_manifest(folder: Path) -> None:
    assert said(folder, "whole") == ["committed"] * 2
    manifest = catalog.read_manifest(folder, catalog.checkpoint_name(2, 1))
    on_disk = {path.name for path in (folder / manifest.checkpoint.name).iterdir()}
    assert on_disk == {*manifest.files, catalog.MANIFEST}
    assert len([name for name in manifest.files if name.endswith("optim_states.pt")]) == 2
    assert catalog.find_damage(folder, manifest) is None


@pytest.mark.parametrize(
    ("what", "number"),
    [("commit refused", 2), ("rank 1 can't write", 3), ("rank 1 can't write beside training", 6)],
)
def test_a_failure_anywhere_is_an_error_everywhere_and_commits_nothing(folder: Path, what: str, number: int) -> None:
    first, second = said(folder, what)
    assert first == second
    assert "No space left on device" in first or "rank 1: OSError: [Errno 27] File too large" in first
    assert catalog.checkpoint_name(2, number) not in catalog.list_committed(folder)


def test_saving_works_again_after_failures(folder: Path) -> None:
    assert said(folder, "again") == ["committed"] * 2
    assert said(folder, "beside training again") == ["committed"] * 2
    assert [int(name[-6:]) for name in catalog.list_committed(folder)] == [1, 4, 5, 7]


def test_loading_gives_the_saved_weights_and_each_rank_its_own_state(folder: Path) -> None:
    assert said(folder, "moved on") == ["True"] * 2
    assert said(folder, "back") == ["rank 0 at step 2", "rank 1 at step 2"]
    assert said(folder, "same weights") == ["True"] * 2


def test_damage_on_one_rank_is_an_error_on_all_and_an_older_checkpoint_still_loads(folder: Path) -> None:
    first, second = said(folder, "damaged on rank 1")
    assert first == second
    assert "rank 1" in first
    assert "has changed since it was saved" in first
    assert said(folder, "whole after all") == ["rank 0 at step 2", "rank 1 at step 2"]


def test_a_save_beside_training_holds_the_state_from_before_the_steps_that_were_made_meanwhile(folder: Path) -> None:
    assert said(folder, "beside training") == ["committed"] * 2
    assert said(folder, "went on") == ["3"] * 2
    assert said(folder, "beside") == ["rank 0 at step 2", "rank 1 at step 2"]
    assert said(folder, "not what came later") == ["True"] * 2


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("other model", "its model is one of 5 parameters (0123), here it is one of 72 parameters ("),
        ("other stage", "its ZeRO stage is 3, here it is 2"),
        ("other precision", "its precision is bf16, here it is fp32"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused_with_both_values(folder: Path, what: str, words: str) -> None:
    first, second = said(folder, what)
    assert first == second
    assert words in first


def test_a_file_that_deepspeed_could_take_for_its_own_is_damage(folder: Path) -> None:
    first, second = said(folder, "a file too many")
    assert first == second
    assert "mp_rank_01_model_states.pt is not in its manifest" in first


def test_no_latest_file_is_left_for_anybody_to_believe_in(folder: Path) -> None:
    assert not (folder / "latest").exists()
