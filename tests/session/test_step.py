"""A session's step on two real ranks: it waits for nobody, costs one small reduction, and tells all ranks the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.training import launch_ranks

SICK_STEP = 5
"""The step in which rank 1 loses its weights."""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank saw."""
    folder = tmp_path_factory.mktemp("step")
    launch_ranks(Path(__file__).with_name("step_ranks.py"), folder, 2)
    return [json.loads((folder / f"seen-{rank}.json").read_text()) for rank in (0, 1)]


def test_a_step_comes_back_before_the_other_rank_has_begun_its_own(seen: list[dict[str, Any]]) -> None:
    # Rank 1 began each of these only then: else they would have waited for each other for ever.
    assert seen[0]["steps"]["returned"][:SICK_STEP] == [True] * SICK_STEP


def test_a_step_is_one_reduction_of_a_few_numbers_and_nothing_else(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        assert rank["steps"]["collectives"] == [[0, 1]] * SICK_STEP
        assert rank["steps"]["vectors"] == [[True, 9]] * (SICK_STEP + 1)
        assert rank["steps"]["asynchronous"] is True


def test_what_all_ranks_are_told_is_the_mean_of_the_losses_and_what_rank_0_says_of_the_rest(
    seen: list[dict[str, Any]],
) -> None:
    observed = seen[0]["steps"]["observed"]
    assert observed[:-1] == [[step, 2.5 - step / 64, 0.5, 2.0**step] for step in range(1, SICK_STEP)]
    assert seen[1]["steps"]["observed"][:-1] == observed[:-1]


def test_a_nan_on_one_rank_is_the_same_incident_on_both_and_is_heard_of_one_step_later(
    seen: list[dict[str, Any]],
) -> None:
    first, second = seen[0]["steps"], seen[1]["steps"]
    assert first["returned"] == second["returned"] == [True] * SICK_STEP + [False]
    assert first["incidents"] == second["incidents"]
    (incident,) = first["incidents"]
    assert (incident["onset_step"], incident["step"]) == (SICK_STEP, SICK_STEP)


def test_the_monitor_is_told_of_a_rewind_until_a_checkpoint_is_loaded_that_was_saved_since(
    seen: list[dict[str, Any]],
) -> None:
    assert seen[0]["attempts"] == seen[1]["attempts"]
    assert [(attempt["from"], attempt["rewound"]) for attempt in seen[0]["attempts"]] == [
        (0, 0),  # loses the weights
        (4, 1),  # crashes before the next save
        (4, 1),  # crashes after it
        (8, 0),  # crashes before the next save
        (8, 0),  # loses the weights once more
        (8, 1),
    ]
