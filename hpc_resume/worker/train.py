"""Choose the trainer and let it run."""

from __future__ import annotations

from collections.abc import Callable

from hpc_resume.config import load_run
from hpc_resume.journal.folder import RunFolder


def train(folder: RunFolder, attempt: int, claim: int, stop_requested: Callable[[], bool]) -> None:
    """Train one attempt of a run, for a claim, with the trainer that its config names."""
    config = load_run(folder.submission.config, folder.index)
    # The only trainer so far; a table by `config.training.trainer` once there are more.
    from hpc_resume.trainers.causal_lm import train_causal_lm

    train_causal_lm(folder, attempt, claim, config, stop_requested)
