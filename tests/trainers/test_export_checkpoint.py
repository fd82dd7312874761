"""Exporting a checkpoint that is damaged, gone, set aside, of another model, or not finite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.checkpoints import STATES, commit, first_weights, tell_facts
from trainers.tiny_models import SHAPE, config_of

from hpc_resume.checkpoints import catalog
from hpc_resume.config.schema import ModelConfig
from hpc_resume.errors import (
    CheckpointError,
    ConfigError,
    DamagedError,
    DivergedError,
    ExportError,
    HpcResumeError,
    MismatchError,
    TrainerError,
)
from hpc_resume.journal.folder import RunFolder
from hpc_resume.recovery.events import Checkpoint
from hpc_resume.trainers.export_checkpoint import Exported, export_checkpoint
from hpc_resume.trainers.token_blocks import FACTS

CHECKPOINT = Checkpoint(name=catalog.checkpoint_name(4, 1), step=4, position=32, branch=0, save_number=1)
NAME = CHECKPOINT.name
Export = Callable[..., Exported]


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run with one committed checkpoint."""
    folder = RunFolder(tmp_path / "run-0000")
    folder.path.mkdir(mode=0o700)
    tell_facts(folder)
    commit(folder, CHECKPOINT, first_weights(config_of(tmp_path, "fp32", 1, ModelConfig(config=SHAPE))))
    return folder


@pytest.fixture
def said() -> list[str]:
    """What `export` was told."""
    return []


@pytest.fixture
def export(run: RunFolder, said: list[str]) -> Export:
    """Export that checkpoint."""

    def export(output: Path | None = None, *, force: bool = False, shape: dict[str, object] = SHAPE) -> Exported:
        config = config_of(run.path, "fp32", 1, ModelConfig(config=shape))
        return export_checkpoint(run, config, NAME, output or run.path / "out", force=force, say=said.append)

    return export


def test_a_run_is_only_read(run: RunFolder, export: Export, said: list[str], tmp_path: Path) -> None:
    def state() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in [run.path, *run.path.rglob("*")]}

    before = state()
    done = export(tmp_path / "elsewhere" / "model")
    assert state() == before
    assert (done.path, done.step, done.checkpoint) == (str(tmp_path / "elsewhere" / "model"), 4, NAME)
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["model"]
    first, second, third = said
    assert first.startswith(f"verifying {NAME}: 1 files, 0.2 MB")
    assert second == f"reading the weights of {NAME}"
    assert third == f"writing {done.path}"


def test_a_checkpoint_that_was_set_aside_is_found_under_its_new_name(run: RunFolder, export: Export) -> None:
    catalog.set_aside(run.checkpoints, NAME)
    assert export().checkpoint == NAME
    assert [path.name for path in run.checkpoints.iterdir()] == [f"quarantined.{NAME}"]


def _damage(run: RunFolder) -> None:
    path = run.checkpoints / NAME / STATES
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _no_manifest(run: RunFolder) -> None:
    (run.checkpoints / NAME / catalog.MANIFEST).unlink()


def _gone(run: RunFolder) -> None:
    (run.checkpoints / NAME).rename(run.path / "trash")


def _not_weights(run: RunFolder) -> None:
    commit(run, CHECKPOINT, {"other.weight": torch.ones(2)})


def _no_facts(run: RunFolder) -> None:
    (run.data / FACTS).unlink()


def _shared(run: RunFolder) -> None:
    run.path.chmod(0o770)


def _output_is_there(run: RunFolder) -> None:
    (run.path / "out").mkdir()
    (run.path / "out" / "mine.txt").write_text("precious")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (_damage, DamagedError, f"is damaged: {STATES} has changed since it was saved"),
        (_no_manifest, DamagedError, "is damaged: its manifest is missing"),
        (_gone, CheckpointError, "any more; choose another one"),
        (
            _not_weights,
            MismatchError,
            "can't be read (KeyError: 'model.embed_tokens.weight'); use the versions that sav",
        ),
        (_no_facts, TrainerError, f"{FACTS} is missing"),
        (_shared, ConfigError, "can be written to by others (mode 770)"),
        (_output_is_there, ExportError, "Directory not empty"),
    ],
    ids=["damaged", "no manifest", "gone", "other names", "no facts", "writable by others", "output is there"],
)
def test_what_is_wrong_is_said_in_one_line_and_nothing_is_left_behind(
    run: RunFolder, export: Export, change: Callable[[RunFolder], None], error: type[HpcResumeError], message: str
) -> None:
    change(run)
    before = sorted(run.path.rglob("*"))
    with pytest.raises(error) as refused:
        export(force=True)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert sorted(run.path.rglob("*")) == before


def test_a_checkpoint_that_others_can_write_to_is_not_loaded_for_an_export_either(
    run: RunFolder, export: Export
) -> None:
    (run.checkpoints / NAME).chmod(0o777)
    with pytest.raises(ConfigError, match="can be written to by others"):
        export(force=True)
    assert not (run.path / "out").exists()


def test_weights_of_other_sizes_than_the_config_says_are_refused(export: Export) -> None:
    with pytest.raises(
        MismatchError, match=r"not of this model: model.layers.0.mlp.gate_proj.weight is \(64, 32\) there"
    ):
        export(shape={**SHAPE, "intermediate_size": 128})


def test_weights_that_are_not_finite_are_refused_unless_somebody_insists(
    run: RunFolder, export: Export, said: list[str]
) -> None:
    weights = torch.load(run.checkpoints / NAME / STATES, weights_only=False)["module"]
    weights["model.norm.weight"][3] = float("nan")
    commit(run, CHECKPOINT, weights)
    with pytest.raises(DivergedError) as refused:
        export()
    assert f"1 of the 21 weights are not finite in checkpoint {NAME}: model.norm.weight; choose" in str(refused.value)
    assert not (run.path / "out").exists()
    export(force=True)
    assert (run.path / "out" / "model.safetensors").exists()
    assert any(line.startswith("warning: 1 of the 21 weights are not finite") for line in said)


def test_a_manifest_of_another_version_is_no_damage(run: RunFolder, export: Export) -> None:
    commit(run, CHECKPOINT, {}, schema=999)
    with pytest.raises(MismatchError, match="has schema 999"):
        export()
