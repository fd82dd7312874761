from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_resume.config.check import check_before_submit
from hpc_resume.config.cluster_section import ClusterConfig
from hpc_resume.config.deepspeed_json import resolve_deepspeed
from hpc_resume.config.load import dump_config, load_config
from hpc_resume.config.schema import RunConfig, TrainingConfig
from hpc_resume.errors import ConfigError


def config_for(nodes: int | str, accumulation: int, ranks_per_node: int = 8, micro_batch: int = 2) -> RunConfig:
    return RunConfig(
        cluster=ClusterConfig(nodes=nodes, ranks_per_node=ranks_per_node),
        training=TrainingConfig(gradient_accumulation_steps=accumulation, micro_batch_size=micro_batch),
    )


@pytest.mark.parametrize(("text", "value"), [("2-4", "2-4"), ("3", 3), ("'3'", 3), ("02-4", "02-4")], ids=str)
def test_nodes_are_a_number_or_a_range_in_a_file_and_on_the_command_line(
    tmp_path: Path, text: str, value: int | str
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(f"cluster: {{nodes: {text}}}\n")
    config = load_config(path)
    assert config.cluster.nodes == value
    (tmp_path / "again.yaml").write_text(dump_config(config))
    assert load_config(tmp_path / "again.yaml") == config
    path.write_text("seed: 1\n")
    assert load_config(path, [f"cluster.nodes={text}"]).cluster.nodes == value


def test_a_range_has_two_ends_and_a_number_has_one() -> None:
    found = [(c.min_nodes, c.max_nodes) for c in (ClusterConfig(nodes=n) for n in (3, "2-4", "02-4", "5-5"))]
    assert found == [(3, 3), (2, 4), (2, 4), (5, 5)]


def test_a_range_means_its_settings_for_the_largest_number() -> None:
    config = config_for("2-4", accumulation=3)
    assert (config.world_size, config.global_batch_size) == (32, 4 * 8 * 2 * 3)
    assert config.fitting_nodes == (2, 3, 4)
    there = [config.at_nodes(n) for n in config.fitting_nodes]
    assert [c.cluster.nodes for c in there] == [2, 3, 4]
    assert [c.training.gradient_accumulation_steps for c in there] == [6, 4, 3]
    assert [c.world_size for c in there] == [16, 24, 32]


@given(st.integers(1, 6), st.integers(1, 12), st.integers(1, 12), st.integers(1, 8), st.integers(0, 12))
def test_wherever_a_run_is_trained_a_step_takes_the_same_samples(
    smallest: int, more: int, accumulation: int, ranks: int, available: int
) -> None:
    largest = smallest + more
    try:
        config = config_for(f"{smallest}-{largest}", accumulation, ranks_per_node=ranks)
    except ValueError:
        assert largest * accumulation % smallest != 0
        return
    # The largest number of nodes always fits, and whatever Slurm gives, there is one that does.
    assert config.fitting_nodes[0] == smallest
    assert config.fitting_nodes[-1] == largest
    there = config.at_most(smallest + available)
    assert there.global_batch_size == config.global_batch_size
    used = there.cluster.max_nodes
    assert used <= smallest + available
    assert not [n for n in config.fitting_nodes if used < n <= smallest + available]
    # A config for one number of nodes is a config like any other.
    assert there.at_most(99) == there


def test_a_number_of_nodes_that_is_set_is_the_only_one() -> None:
    config = config_for(2, accumulation=3)
    assert config.fitting_nodes == (2,)
    assert config.at_nodes(2) == config == config.at_most(7)


@pytest.mark.parametrize("nodes", [1, 3, 8], ids=str)
def test_another_number_of_nodes_is_refused_with_those_that_fit(nodes: int) -> None:
    config = config_for("2-7", accumulation=4, ranks_per_node=1, micro_batch=1)
    message = (
        f"can't train on {nodes} node(s): cluster.nodes is 2-7, and a global batch of 28 samples fits on 2, 4 or 7"
    )
    with pytest.raises(ConfigError) as caught:
        config.at_nodes(nodes)
    assert str(caught.value) == message
    with pytest.raises(ConfigError, match=r"can't train on 1 node\(s\): cluster.nodes is 2-7"):
        config.at_most(1)


def test_deepspeed_is_told_the_same_batch_and_another_accumulation() -> None:
    config = config_for("2-4", accumulation=2)
    found = [resolve_deepspeed({"train_batch_size": 128}, config.at_nodes(n)) for n in (2, 4)]
    assert [each["train_batch_size"] for each in found] == [128, 128]
    assert [each["gradient_accumulation_steps"] for each in found] == [4, 2]


def test_a_deepspeed_file_that_fixes_the_accumulation_is_refused_before_it_can_matter(tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("word " * 1000)
    path = tmp_path / "c.yaml"
    path.write_text(
        "cluster: {kind: slurm, nodes: 2-4}\ndata: {paths: [data.txt], sequence_tokens: 16}\n"
        "training: {gradient_accumulation_steps: 2, deepspeed: ds.json}\n"
    )
    (tmp_path / "ds.json").write_text('{"gradient_accumulation_steps": 2, "train_batch_size": 8}')
    with pytest.raises(ConfigError) as caught:
        check_before_submit(load_config(path), "slurm")
    assert str(caught.value) == (
        "training.deepspeed: gradient_accumulation_steps is 2, but hpc_resume has 4 "
        '(training.gradient_accumulation_steps); write "auto" there (on 2 of 2-4 nodes)'
    )
    check_before_submit(load_config(path, ["cluster.nodes=4"]), "slurm")
    (tmp_path / "ds.json").write_text('{"gradient_accumulation_steps": "auto", "train_batch_size": 8}')
    check_before_submit(load_config(path), "slurm")
