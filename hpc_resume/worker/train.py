"""Choose the trainer and let it run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from hpc_resume.config import load_run
from hpc_resume.config.schema import RunConfig
from hpc_resume.journal.folder import RunFolder


def train(folder: RunFolder, attempt: int, claim: int, stop_requested: Callable[[], bool]) -> None:
    """Train one attempt of a run, for a claim, with the trainer that its config names."""
    config = at_world_size(load_run(folder.submission.config, folder.index), os.environ)
    # The only trainer so far; a table by `config.training.trainer` once there are more.
    from hpc_resume.trainers.causal_lm import train_causal_lm

    train_causal_lm(folder, attempt, claim, config, stop_requested)


def at_world_size(config: RunConfig, environment: Mapping[str, str]) -> RunConfig:
    """Return a config for as many nodes as this attempt has; the supervisor chose them by the same rule.

    A number of ranks that is not known, or fills no number of nodes, is left for the trainer to refuse.

    Raises:
        ConfigError: the config does not allow that number of nodes.
    """
    nodes, left_over = divmod(int(environment.get("WORLD_SIZE", "0")), config.cluster.ranks_per_node)
    return config.at_nodes(nodes) if nodes and not left_over else config
