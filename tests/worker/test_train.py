from __future__ import annotations

import pytest

from hpc_resume.config.cluster_section import ClusterConfig
from hpc_resume.config.schema import RunConfig, TrainingConfig
from hpc_resume.errors import ConfigError
from hpc_resume.worker.train import at_world_size

RANGE = RunConfig(
    cluster=ClusterConfig(nodes="2-4", ranks_per_node=8), training=TrainingConfig(gradient_accumulation_steps=2)
)


@pytest.mark.parametrize(("world_size", "nodes", "accumulation"), [("16", 2, 4), ("32", 4, 2)], ids=str)
def test_ranks_find_their_settings_by_their_number(world_size: str, nodes: int, accumulation: int) -> None:
    config = at_world_size(RANGE, {"WORLD_SIZE": world_size})
    assert (config.cluster.nodes, config.training.gradient_accumulation_steps) == (nodes, accumulation)
    assert (config.world_size, config.global_batch_size) == (int(world_size), RANGE.global_batch_size)


def test_as_many_nodes_as_the_batch_does_not_fit_on_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"can't train on 3 node\(s\)"):
        at_world_size(RANGE, {"WORLD_SIZE": "24"})


@pytest.mark.parametrize("environment", [{}, {"WORLD_SIZE": "17"}], ids=["no launcher", "half a node"])
def test_what_fills_no_number_of_nodes_is_left_to_the_trainer(environment: dict[str, str]) -> None:
    assert at_world_size(RANGE, environment) is RANGE
