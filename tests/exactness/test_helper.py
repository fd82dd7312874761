"""The helper finds what is not exact, names it, and accepts nothing that proves nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from exactness.cells import CLIP, STEPS, Cell, make_config, share_samples

from hpc_resume.errors import TrainerError
from hpc_resume.journal.folder import RunFolder
from hpc_resume.journal.metrics import read_rows
from hpc_resume.testing import Interruption, assert_exact, compare, compare_runs, train

pytestmark = pytest.mark.deepspeed

CELL = Cell(2, "bf16", 2, 1)
OWN = Cell(2, "fp32", 2, 1)
"""For the loops in own_loops.py, whose inputs are fp32."""
Row = dict[str, Any]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run that nobody interrupted."""
    folder = tmp_path_factory.mktemp("undisturbed")
    return train(make_config(folder, CELL), folder / "run")


@pytest.fixture
def other(undisturbed: RunFolder, tmp_path: Path) -> RunFolder:
    """The same run, to be spoilt."""
    folder = tmp_path / undisturbed.path.name
    shutil.copytree(undisturbed.path, folder)
    return RunFolder(folder)


def edit(path: Path, change: Callable[[list[Row]], list[Row]]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in change(read_rows(path))), encoding="utf-8")


def set_in_step(step: int, **values: Any) -> Callable[[list[Row]], list[Row]]:
    return lambda rows: [row | values if row.get("step") == step else row for row in rows]


def test_a_run_is_what_its_copy_is(undisturbed: RunFolder, other: RunFolder) -> None:
    found = compare(undisturbed, other)
    assert found.differences == []
    assert found.rows == 2 * (1 + STEPS)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"weights": "0"}, "weights"),
        ({"masters": "0"}, "the optimizer's fp32 weights"),
        ({"optimizer": "0"}, "optimizer state"),
        ({"samples": [5]}, "samples [5] instead of ["),
        ({"lr": [0.5]}, "learning rate [0.5] instead of ["),
        ({"loss": float("nan")}, "loss nan instead of "),
        ({"random": {"python": "0"}}, "Python's random generator"),
        ({"random": {"torch": "0"}}, "torch's random generator"),
        ({"random": {"numpy": "0"}}, "numpy's random generator"),
    ],
    ids=lambda value: "".join(value) if isinstance(value, dict) else "",
)
def test_one_thing_that_differs_on_one_rank_is_named(
    undisturbed: RunFolder, other: RunFolder, values: Row, words: str
) -> None:
    edit(other.trace(1, 1), set_in_step(6, **values))
    (difference,) = compare_runs(undisturbed, other)
    assert difference.startswith(f"attempt 1, rank 1, step 6 differs: {words}")


@pytest.mark.parametrize("name", ["loss", "grad_norm", "lr"])
def test_a_global_value_that_differs_is_named(undisturbed: RunFolder, other: RunFolder, name: str) -> None:
    edit(other.metrics(1), set_in_step(4, **{name: 77.0}))
    (difference,) = compare_runs(undisturbed, other)
    assert difference.startswith("attempt 1, all ranks, step 4 differs: ")
    assert "77.0 instead of" in difference


def test_a_run_that_is_not_whole_is_no_equal(undisturbed: RunFolder, other: RunFolder) -> None:
    edit(other.trace(1, 0), lambda rows: [row for row in rows if row["step"] != 5])
    assert compare_runs(undisturbed, other) == ["rank 0: step 5 was never trained"]
    other.trace(1, 0).unlink()
    assert compare_runs(undisturbed, other)[0] == "ranks [1] instead of [0, 1]"
    other.trace(1, 1).unlink()
    assert "set training.record_state" in compare_runs(undisturbed, other)[0]
    assert compare_runs(other, undisturbed) == compare_runs(undisturbed, other)


def test_a_result_that_differs_or_is_not_there_is_named(undisturbed: RunFolder, other: RunFolder) -> None:
    journal = other.attempt(1)
    kind = '"kind":"run_finished"'
    lines = journal.read_text(encoding="utf-8").splitlines()
    finished = next(line for line in lines if kind in line)
    assert '"weights_digest":"' in finished
    spoilt_line = finished.replace('"weights_digest":"', '"weights_digest":"0')
    journal.write_text("".join(f"{spoilt_line if kind in line else line}\n" for line in lines), encoding="utf-8")
    assert compare_runs(undisturbed, other) == ["the finished weights differ"]
    journal.write_text("".join(f"{line}\n" for line in lines if kind not in line), encoding="utf-8")
    assert compare_runs(undisturbed, other) == [f"{other.path} did not finish"]


def test_schedule_clipping_and_dropout_are_on_in_the_cells(undisturbed: RunFolder, tmp_path: Path) -> None:
    rows = [row for row in read_rows(undisturbed.metrics(1)) if "step" in row]
    assert len({row["lr"] for row in rows}) == STEPS
    assert all(row["grad_norm"] > CLIP for row in rows)
    generators = [row["random"]["torch"] for row in read_rows(undisturbed.trace(1, 0))]
    assert len(set(generators)) == 1 + STEPS

    config = make_config(tmp_path, CELL)
    shape = config.model.config | {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    share_samples(undisturbed, tmp_path / "dry")
    dry = train(replace(config, model=replace(config.model, config=shape)), tmp_path / "dry")
    assert len({row["random"]["torch"] for row in read_rows(dry.trace(1, 0))}) == 1
    differences = compare_runs(undisturbed, dry)
    assert [text.partition(":")[0] for text in differences[:2]] == [
        f"attempt 1, rank {rank}, step 1 differs" for rank in (0, 1)
    ]
    assert all("loss" in text for text in differences[:2])


def test_a_loop_of_ones_own_that_keeps_its_state_is_exact(tmp_path: Path) -> None:
    disturbances = [Interruption("stop", 3), Interruption("reload", 4), Interruption("kill", 6)]
    assert_exact(make_config(tmp_path, OWN), tmp_path, disturbances, trainer="exactness.own_loops:train")


@pytest.mark.parametrize("kind", ["kill", "reload"])
def test_state_that_is_in_no_checkpoint_is_found(tmp_path: Path, kind: Any) -> None:
    with pytest.raises(AssertionError, match=r"attempt \d, rank 0, step \d differs: loss .* instead of"):
        assert_exact(
            make_config(tmp_path, OWN), tmp_path, [Interruption(kind, 6)], trainer="exactness.own_loops:forget"
        )


def test_a_generator_that_is_seeded_late_is_found(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"attempt 2, rank 1, step \d differs: loss .*torch's random generator"):
        assert_exact(
            make_config(tmp_path, OWN), tmp_path, [Interruption("kill", 6)], trainer="exactness.own_loops:reseed"
        )


def test_one_bit_of_one_moment_is_found_where_it_was_loaded(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"attempt 1, rank 1, step 4 differs: as it was loaded: optimizer state"):
        assert_exact(
            make_config(tmp_path, OWN), tmp_path, [Interruption("reload", 6)], trainer="exactness.own_loops:nudge"
        )


def test_a_training_that_fails_is_no_comparison(tmp_path: Path) -> None:
    with pytest.raises(TrainerError, match=r"did not finish: .*RuntimeError: this loop has a mistake; see .*logs"):
        train(make_config(tmp_path, OWN), tmp_path / "run", trainer="exactness.own_loops:fail")


def test_an_interruption_that_did_not_happen_is_no_comparison(tmp_path: Path) -> None:
    with pytest.raises(TrainerError, match=r"started 1 times .* but 2 and 2 were asked for"):
        train(
            make_config(tmp_path, OWN),
            tmp_path / "run",
            [Interruption("stop", STEPS)],
            trainer="exactness.own_loops:train",
        )
