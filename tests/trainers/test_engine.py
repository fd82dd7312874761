"""The framework side of the trainer on real DeepSpeed ranks, on the CPU, without compiler and without ninja."""

from __future__ import annotations

import filecmp
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from trainers.tiny_models import ODD, SHAPE, config_of

from hpc_resume.config.schema import ModelConfig
from hpc_resume.journal.folder import RunFolder
from hpc_resume.trainers.export_checkpoint import export_checkpoint
from hpc_resume.trainers.token_blocks import FACTS

pytestmark = pytest.mark.deepspeed

ROOT = Path(__file__).parents[2]
STAGES = ("0", "1", "2", "3")
CASES = [(stage, precision) for precision in ("fp32", "bf16") for stage in STAGES]
Results = dict[str, dict[str, Any]]


def start_ranks(folder: Path, ranks: int, precision: str, *stages: str) -> Results:
    (folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 200)
    extensions = folder / "extensions"
    extensions.mkdir(exist_ok=True)
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("ACCELERATE_", "DS_", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_"))
    }
    environment |= {
        "PATH": "/nonexistent",
        "TORCH_EXTENSIONS_DIR": str(extensions),
        "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
    }
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "--max-restarts=0"]
    script = str(Path(__file__).with_name("engine_ranks.py"))
    process = subprocess.Popen(
        [sys.executable, *launcher, script, str(folder), precision, *stages],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=300)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    assert process.returncode == 0, output
    assert list(extensions.iterdir()) == [], "DeepSpeed compiled something"
    return {path.stem: json.loads(path.read_text()) for path in folder.glob(f"*{precision}.json")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("two-ranks")


@pytest.fixture(scope="module")
def two_ranks(folder: Path) -> Results:
    return start_ranks(folder, 2, "fp32", *STAGES) | start_ranks(folder, 2, "bf16", *STAGES)


@pytest.fixture(params=CASES, ids=[f"zero{stage}-{precision}" for stage, precision in CASES])
def case(request: pytest.FixtureRequest, two_ranks: Results) -> dict[str, Any]:
    stage, precision = request.param
    return {"stage": stage, "precision": precision, **two_ranks[f"{stage}-{precision}"]}


def test_the_loss_is_finite_and_falls(case: dict[str, Any]) -> None:
    losses = [loss for row in case["rows"] for loss in row["losses"]]
    assert all(map(math.isfinite, losses))
    assert sum(losses[-2:]) < sum(losses[:2]) - 0.1


def test_the_learning_rate_that_is_set_is_the_one_torch_uses(case: dict[str, Any]) -> None:
    assert [row["used"] for row in case["rows"]] == [[1e-3, 1e-3], [2e-3, 2e-3], [5e-4, 5e-4]]
    assert [row["lr"] for row in case["rows"]] == [1e-3, 2e-3, 5e-4]


def test_a_healthy_step_is_applied_and_has_a_norm_except_at_stage_0_in_fp32(case: dict[str, Any]) -> None:
    assert not any(row["skipped"] for row in case["rows"])
    norms = [row["norm"] for row in case["rows"]]
    if (case["stage"], case["precision"]) == ("0", "fp32"):
        assert norms == [None] * 3
    else:
        assert all(0.5 < norm < 5 for norm in norms)


def test_non_finite_gradients_on_one_rank_spare_the_weights_exactly_where_we_say_so(case: dict[str, Any]) -> None:
    nan = case["nan"]
    assert nan["unchanged"] == nan["skipped"] == case["protects"]
    assert nan["norm"] == (math.inf if case["protects"] else None)
    assert case["protects"] == ((case["stage"], case["precision"]) != ("0", "fp32"))


def test_the_device_is_named(case: dict[str, Any]) -> None:
    assert case["device"] == "cpu"


def test_first_weights_do_not_depend_on_the_stage(case: dict[str, Any], two_ranks: Results) -> None:
    assert case["initial"] == two_ranks[f"1-{case['precision']}"]["initial"]


def test_the_first_update_does_not_depend_on_the_stage(case: dict[str, Any], two_ranks: Results) -> None:
    reference = two_ranks["2-fp32"]
    tolerance = {"fp32": 1e-6, "bf16": 1e-3}[case["precision"]]
    for row, expected in zip(case["rows"][:2], reference["rows"][:2], strict=True):
        assert row["losses"] == pytest.approx(expected["losses"], rel=tolerance)


def test_weights_change_and_norm_weights_are_not_decayed(case: dict[str, Any]) -> None:
    assert case["digest"] != case["initial"]
    assert case["decays"] == [0.1, 0.0]


def test_the_exported_folder_is_the_trained_model(case: dict[str, Any]) -> None:
    export = case["export"]
    assert export["theirs"] == export["mine"]
    assert export["dtype"] == {"fp32": "torch.float32", "bf16": "torch.bfloat16"}[case["precision"]]
    assert export["use_cache"]


def test_a_failed_export_is_told_to_all_ranks(case: dict[str, Any]) -> None:
    first, second = case["failed_export"]
    assert first == second
    assert first.startswith("ExportError: exporting the model to ")


def test_weights_that_are_not_finite_are_no_result_and_all_ranks_hear_so(case: dict[str, Any]) -> None:
    first, second = case["diverged_export"]
    assert first == second
    # Where nothing protects them, the step with the NaN before has spoiled them all.
    assert first.startswith("DivergedError: 1 of the 21 " if case["protects"] else "DivergedError: 21 of the 21 ")
    assert "model.embed_tokens.weight" in first


EXPORTS = [
    f"{stage}-{precision}" for stage in (*STAGES, "odd2", "odd3", "pretrained") for precision in ("fp32", "bf16")
]


@pytest.mark.parametrize("name", EXPORTS)
def test_a_checkpoint_becomes_the_very_folder_that_the_run_itself_exports(
    folder: Path, two_ranks: Results, tmp_path: Path, name: str
) -> None:
    model, info = export_again(folder, 2, name, tmp_path)
    assert info["missing_keys"] == info["unexpected_keys"] == set()
    assert str(model.dtype) == {"fp32": "torch.float32", "bf16": "torch.bfloat16"}[name.split("-")[1]]


def export_again(folder: Path, ranks: int, name: str, tmp_path: Path) -> tuple[Any, dict[str, Any]]:
    """Export a checkpoint, compare the folder with what its ranks exported themselves, and load it."""
    from transformers import AutoModelForCausalLM

    run, theirs, mine = RunFolder(folder / f"run-{name}"), folder / f"export-{name}", tmp_path / f"model-{name}"
    run.data.mkdir()
    # Of the samples only the facts are needed.
    shutil.copy(folder / "samples-0" / FACTS, run.data)
    stage, precision = name.split("-")
    model = ModelConfig(config=ODD if stage.startswith("odd") else SHAPE)
    if stage == "pretrained":
        model = ModelConfig(name_or_path=str(folder / f"export-3-{precision}"), weights="pretrained")
    (checkpoint,) = run.checkpoints.iterdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # DeepSpeed's, when it is imported
        config = config_of(folder, precision, ranks, model)
        done = export_checkpoint(run, config, checkpoint.name, mine, force=False, say=print)
    files = sorted(path.name for path in theirs.iterdir())
    assert sorted(path.name for path in mine.iterdir()) == files
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer_config.json"} <= set(files)
    assert filecmp.cmpfiles(theirs, mine, files, shallow=False) == (files, [], [])
    loaded, info = AutoModelForCausalLM.from_pretrained(mine, output_loading_info=True)
    assert (done.checkpoint, done.step) == (checkpoint.name, int(checkpoint.name[5:14]))
    assert done.parameters == loaded.num_parameters()
    return loaded, info


@pytest.mark.slow
def test_any_number_of_ranks_leaves_checkpoints_that_one_process_can_export(tmp_path: Path) -> None:
    start_ranks(tmp_path, 3, "bf16", "1", "3")
    for stage in ("1", "3", "odd2", "odd3", "pretrained"):
        export_again(tmp_path, 3, f"{stage}-bf16", tmp_path)


def test_an_export_taken_up_in_parts_at_stage_3_has_the_same_weights(two_ranks: Results) -> None:
    assert two_ranks["pretrained-fp32"]["digest"] == two_ranks["3-fp32"]["digest"]
    for precision in ("fp32", "bf16"):
        export = two_ranks[f"pretrained-{precision}"]["export"]
        assert export["mine"] == export["theirs"] == two_ranks[f"3-{precision}"]["export"]["mine"]


def test_a_single_rank_trains_from_the_same_first_weights(tmp_path: Path, two_ranks: Results) -> None:
    results = start_ranks(tmp_path, 1, "fp32", "0", "3")
    for name, result in results.items():
        assert result["initial"] == two_ranks[name]["initial"]
        assert result["digest"] != result["initial"]
        export_again(tmp_path, 1, name, tmp_path)
