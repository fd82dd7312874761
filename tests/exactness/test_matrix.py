"""A run that was interrupted equals the undisturbed one: every step of every rank, to the last bit."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from exactness.cells import (
    ALL,
    CORE,
    Cell,
    differences,
    in_place_everywhere,
    killed_everywhere,
    make_config,
    pairwise,
    sometimes,
    stopped_everywhere,
)

from hpc_resume.testing import Interruption, assert_exact

pytestmark = pytest.mark.deepspeed


@pytest.mark.parametrize("cell", CORE, ids=str)
def test_a_stop_a_kill_and_a_reload_change_nothing(cell: Cell, tmp_path: Path) -> None:
    assert differences(make_config(tmp_path, cell), tmp_path, str(cell), sometimes(cell)) == []


@pytest.mark.slow
@pytest.mark.parametrize("cell", [cell for cell in pairwise(ALL) if cell not in CORE], ids=str)
def test_nor_do_they_in_any_two_settings_together(cell: Cell, tmp_path: Path) -> None:
    assert differences(make_config(tmp_path, cell), tmp_path, str(cell), sometimes(cell)) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cell", "settings"),
    [
        (Cell(2, "bf16", 4, 4), {"overlap_comm": True}),
        (Cell(1, "fp32", 4, 4), {"overlap_comm": True, "reduce_bucket_size": 2000}),
        (Cell(2, "fp32", 2, 4), {"reduce_bucket_size": 1000, "contiguous_gradients": False}),
        (Cell(2, "bf16", 2, 4), {"round_robin_gradients": True}),
        (Cell(3, "bf16", 2, 1), {"stage3_param_persistence_threshold": 0, "sub_group_size": 3000}),
        (Cell(3, "fp32", 4, 4), {"overlap_comm": True, "stage3_max_live_parameters": 0}),
        (Cell(3, "bf16", 4, 1), {"zero_hpz_partition_size": 2}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else str(value),
)
def test_nor_where_deepspeed_works_in_another_order(cell: Cell, settings: dict[str, Any], tmp_path: Path) -> None:
    config = make_config(tmp_path, cell, **settings)
    assert differences(config, tmp_path, f"{cell} {settings}", sometimes(cell)) == []


@pytest.mark.slow
def test_nor_with_recomputed_activations_and_with_samples_read_ahead(tmp_path: Path) -> None:
    cell = Cell(3, "bf16", 2, 4)
    config = make_config(tmp_path, cell)
    config = replace(
        config,
        training=replace(config.training, gradient_checkpointing=True),
        data=replace(config.data, loader_workers=2),
    )
    assert differences(config, tmp_path, f"{cell} recomputed", sometimes(cell)) == []


@pytest.mark.slow
def test_nor_in_interpreters_of_their_own(tmp_path: Path) -> None:
    # Forked ranks share the seed of their hashes, and with it the order of every set.
    disturbances = [Interruption("kill", 5)]
    assert_exact(make_config(tmp_path, Cell(1, "bf16", 2, 1)), tmp_path, disturbances, start_method="spawn")


@pytest.mark.full
@pytest.mark.parametrize("cell", ALL, ids=str)
def test_every_cell_can_be_interrupted_at_every_step(cell: Cell, tmp_path: Path) -> None:
    disturbances = [in_place_everywhere(), killed_everywhere(), stopped_everywhere(1), stopped_everywhere(2)]
    assert differences(make_config(tmp_path, cell), tmp_path, str(cell), *disturbances) == []


def test_the_cells_that_are_chosen_hold_every_pair_of_values() -> None:
    chosen = pairwise(ALL)
    assert len(chosen) <= 14
    for one, other in combinations(range(5), 2):
        pairs = {(cell.values[one], cell.values[other]) for cell in ALL}
        assert {(cell.values[one], cell.values[other]) for cell in chosen} == pairs
    for index in range(5):
        assert {cell.values[index] for cell in CORE} == {cell.values[index] for cell in ALL}
