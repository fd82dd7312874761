"""A checkpoint of some ranks is taken up by more, or fewer: the same state to the last bit, the same losses nearly.

Nearly, because other sums of gradients are formed first: each rank adds up those of its own micro batches before they
are added over the ranks, and a change of ranks changes which those are. Weights, moments and all else are only cut
differently, so that they are compared bit for bit.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from supervisor.harness import wait_until
from support.training import environment

from hpc_resume.checkpoints import catalog, universal
from hpc_resume.errors import CheckpointError

pytestmark = pytest.mark.deepspeed

LIMIT_S = 240.0
NAME = catalog.checkpoint_name(3, 1)
TOLERANCE = {"fp32": 1e-6, "bf16": 2**-8}
"""Largest difference of a loss, as a part of it; measured were 3e-8 and 5e-4."""


def run_legs(folder: Path, stage: int, precision: str, sizes: str, model: str = "tiny") -> dict[str, Any]:
    """Train by so many ranks after another; return what each leg said, by its name."""
    folder.mkdir(parents=True, mode=0o700)
    script = Path(__file__).with_name("universal_ranks.py")
    done = subprocess.run(
        [sys.executable, str(script), str(folder), str(stage), precision, sizes, model],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=4 * LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")}


@pytest.mark.parametrize(
    ("stage", "precision", "sizes"),
    [
        pytest.param(0, "bf16", "4,2,3", id="ZeRO 0, bf16", marks=pytest.mark.full),
        pytest.param(1, "fp32", "4,2,3,4", id="ZeRO 1, fp32", marks=pytest.mark.slow),
        pytest.param(2, "bf16", "4,1,3", id="ZeRO 2, bf16, one rank in between", marks=pytest.mark.full),
        pytest.param(3, "bf16", "4,2,3,4", id="ZeRO 3, bf16", marks=pytest.mark.slow),
        pytest.param(0, "fp32", "4,2,3", id="ZeRO 0, fp32", marks=pytest.mark.full),
        pytest.param(1, "bf16", "2,4", id="ZeRO 1, bf16", marks=pytest.mark.full),
        pytest.param(2, "fp32", "4,2,3,4", id="ZeRO 2, fp32", marks=pytest.mark.full),
        pytest.param(3, "fp32", "4,2,3,4", id="ZeRO 3, fp32", marks=pytest.mark.full),
    ],
)
def test_a_training_goes_on_with_another_number_of_ranks(
    tmp_path: Path, stage: int, precision: str, sizes: str
) -> None:
    check(run_legs(tmp_path / "c++ (1)", stage, precision, sizes), sizes, precision)


@pytest.mark.slow
def test_ranks_that_have_no_part_of_a_parameter_group_take_up_a_checkpoint(tmp_path: Path) -> None:
    check(run_legs(tmp_path / "few", 2, "fp32", "1,4", "few"), "1,4", "fp32")


def check(said: dict[str, Any], sizes: str, precision: str) -> None:
    legs = [said[f"leg-{number}"] for number in range(len(sizes.split(",")))]
    for before, leg in pairwise(legs):
        assert leg["taken up"] == before["state"]
        # What was saved after the change is complete: a regular load, in the same engine, finds all of it.
        assert leg["moved on"]["masters"] != leg["state"]["masters"]
        assert leg["back"] == leg["state"]
    assert said["again"]["taken up"] == legs[-1]["state"]
    losses = {step: loss for leg in legs for step, loss in leg["losses"].items()}
    assert losses == pytest.approx(said["undisturbed"]["losses"], rel=TOLERANCE[precision])
    for what in ("steps", "settings", "global_steps", "global_samples", "buffers"):
        assert legs[-1]["state"][what] == said["undisturbed"]["state"][what]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one checkpoint of two ranks; its path looks like a pattern of several kinds."""
    folder = tmp_path_factory.mktemp("saved") / "c++ [a] (1)*"
    run_legs(folder, 3, "bf16", "2")
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """Return a copy of it."""
    shutil.copytree(saved / NAME, tmp_path / saved.name / NAME)
    return tmp_path / saved.name


def convert(folder: Path, limit_s: float = LIMIT_S) -> Path:
    return universal.convert(folder, catalog.read_manifest(folder, NAME), limit_s)


def processes_in(folder: Path) -> list[int]:
    """Return the processes that work in a folder, or did when it was deleted."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        try:
            place = os.readlink(link)  # noqa: PTH115 - of a folder that is gone, only this tells the name
        except OSError:
            continue
        if place.startswith(str(folder)):
            found.append(int(link.parent.name))
    return found


def hold_up(folder: Path) -> Callable[[], None]:
    """Have the converter wait for the second rank's file; return what ends that."""
    shard = next((folder / NAME).glob("*zero_pp_rank_1_*optim_states.pt"))
    aside = shard.with_name("aside")
    shard.rename(aside)
    os.mkfifo(shard)

    def go_on() -> None:
        aside.replace(shard)

    return go_on


@pytest.mark.slow
def test_a_conversion_leaves_nothing_but_its_result(folder: Path) -> None:
    before = (folder / NAME / catalog.MANIFEST).read_bytes()
    place = convert(folder)
    assert {path.name for path in folder.iterdir()} == {NAME, place.name}
    assert catalog.list_committed(folder) == [NAME]
    assert {path.name for path in place.iterdir()} == {catalog.MANIFEST, universal.STATE}
    assert not (place / universal.STATE / "tmp").exists()
    # Every rank reads this file: the tensors of one rank have no place in it.
    common = torch.load(place / universal.STATE / "zero" / "optimizer_state.pt", weights_only=False)
    assert "fp32_flat_groups" not in common
    assert {key for state in common["optimizer_state_dict"]["state"].values() for key in state} == {"step"}
    assert universal.find_universal_damage(folder, NAME) is None
    assert (folder / NAME / catalog.MANIFEST).read_bytes() == before
    assert catalog.find_damage(folder, catalog.read_manifest(folder, NAME)) is None
    # Deletion knows where it lies.
    assert catalog.put_conversion_in_trash(folder, NAME)
    catalog.empty_trash(folder)
    assert [path.name for path in folder.iterdir()] == [NAME]


@pytest.mark.slow
def test_a_whole_result_is_used_again_and_a_damaged_one_is_made_anew(folder: Path) -> None:
    place = convert(folder)
    made = (place / catalog.MANIFEST).stat().st_mtime_ns
    assert convert(folder) == place
    assert (place / catalog.MANIFEST).stat().st_mtime_ns == made
    victim = place / universal.STATE / "zero" / "first.weight" / "exp_avg.pt"
    whole = victim.read_bytes()
    content = bytearray(whole)
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    shares = [universal.find_universal_damage(folder, NAME, (rank, 3)) for rank in range(3)]
    assert shares.count(None) == 2
    assert "first.weight/exp_avg.pt of the converted checkpoint has changed" in str(shares)
    assert universal.find_universal_damage(folder, NAME, quick=True) is None
    victim.unlink()
    assert "first.weight/exp_avg.pt of the converted checkpoint is missing" in str(
        universal.find_universal_damage(folder, NAME, quick=True)
    )
    convert(folder)
    assert universal.find_universal_damage(folder, NAME) is None
    assert (place / catalog.MANIFEST).stat().st_mtime_ns != made
    # Not of this checkpoint: its manifest is another one now.
    with (folder / NAME / catalog.MANIFEST).open("a", encoding="utf-8") as file:
        file.write("\n")
    assert universal.find_universal_damage(folder, NAME) == "what was converted is not this checkpoint"


@pytest.mark.slow
def test_a_killed_conversion_takes_its_processes_along_and_is_done_again(folder: Path) -> None:
    go_on = hold_up(folder)
    act = (
        "import pathlib, sys; from hpc_resume.checkpoints import catalog, universal; "
        "folder = pathlib.Path(sys.argv[1]); "
        "universal.convert(folder, catalog.read_manifest(folder, sys.argv[2]))"
    )
    rank_0 = subprocess.Popen([sys.executable, "-c", act, str(folder), NAME], env=environment())
    try:
        # Some tensors of the first rank lie in the draft already.
        wait_until(lambda: any(folder.glob(".universal.*.draft.*/state/tmp/*/*/exp_avg.00")), "in the middle", LIMIT_S)
        assert processes_in(folder)
    finally:
        rank_0.kill()
    assert rank_0.wait() == -signal.SIGKILL
    wait_until(lambda: not processes_in(folder), "the converter is gone as well", LIMIT_S)
    assert universal.find_universal_damage(folder, NAME) == "it has not been converted"
    go_on()
    place = convert(folder)
    assert {path.name for path in folder.iterdir()} == {NAME, place.name}


@pytest.mark.slow
def test_a_conversion_that_takes_too_long_is_one_clear_error_and_leaves_nothing(folder: Path) -> None:
    hold_up(folder)
    with pytest.raises(CheckpointError, match=r"of 2 ranks could not be converted .*longer than 2 s") as caught:
        convert(folder, limit_s=2.0)
    assert "\n" not in str(caught.value)
    assert [path.name for path in folder.iterdir()] == [NAME]
    assert processes_in(folder) == []


@pytest.mark.slow
def test_a_disk_that_refuses_is_one_clear_error_and_leaves_nothing(folder: Path) -> None:
    # What a process may write into one file is limited: it is refused by the kernel where a full disk would.
    act = (
        "import pathlib, resource, sys; from hpc_resume.checkpoints import catalog, universal; "
        "from hpc_resume.errors import CheckpointError\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "manifest = catalog.read_manifest(folder, sys.argv[2])\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]),) * 2)\n"
        "try:\n universal.convert(folder, manifest)\n"
        "except CheckpointError as error:\n print(error)"
    )
    largest = max(path.stat().st_size for path in (folder / NAME).glob("*model_states.pt"))
    done = subprocess.run(
        [sys.executable, "-c", act, str(folder), NAME, str(largest - 1)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert "could not be converted for another number of ranks (OSError: [Errno 27] File too large" in done.stdout
    assert len(done.stdout.splitlines()) == 1
    assert [path.name for path in folder.iterdir()] == [NAME]


@pytest.mark.slow
def test_zero_0_is_not_converted(folder: Path) -> None:
    manifest = dataclasses.replace(catalog.read_manifest(folder, NAME), zero_stage=0)
    with pytest.raises(ValueError, match="any number of ranks loads as it is"):
        universal.convert(folder, manifest)
