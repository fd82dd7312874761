"""The learning rate as a function of the step: nothing to save, nothing that a load could bring back."""

from __future__ import annotations

import math

from hpc_resume.config.schema import TrainingConfig


def learning_rate(training: TrainingConfig, step: int) -> float:
    """Return the learning rate of optimizer step `step`, counted from 1, before any factor of the recovery."""
    if step <= training.warmup_steps:
        return training.learning_rate * step / training.warmup_steps
    if training.schedule == "constant":
        return training.learning_rate
    rest = max(1, training.steps - training.warmup_steps)
    done = min(1.0, (step - training.warmup_steps) / rest)
    share = 1.0 - done if training.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return training.min_learning_rate + (training.learning_rate - training.min_learning_rate) * share
