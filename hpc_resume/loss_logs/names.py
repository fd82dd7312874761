"""What the step, the loss and the gradient norm are called in logs."""

from __future__ import annotations

import re
from collections.abc import Iterable

STEP = (
    "step",
    "global_step",
    "train_global_step",
    "trainer_global_step",
    "train_step",
    "training_step",
    "optimizer_step",
    "iteration",
    "iterations",
    "iter",
    "num_updates",
    "update",
    "_step",
    "steps",
)
LOSS = (
    "loss",
    "train_loss",
    "loss_train",
    "training_loss",
    "lm_loss",
    "train_lm_loss",
    "train_loss_step",
    "loss_step",
    "language_loss",
    "lm_loss_training_lm_loss",
    "train_crossentropyloss",
    "train_ce_loss",
    "ce_loss",
    "loss_train_total",
    "total_loss",
    "train_total_loss",
    "train_batch_loss",
    "batch_loss",
    "avg_loss",
    "mean_loss",
    "train_loss_epoch",
)
GRAD_NORM = (
    "grad_norm",
    "train_grad_norm",
    "gradient_norm",
    "global_grad_norm",
    "train_global_grad_norm",
    "total_grad_norm",
    "gnorm",
    "optim_total_grad_norm",
    "grad_norm_grad_norm",
    "norm",
)
LOSS_SCALE = ("loss_scale", "train_loss_scale", "loss_scale_loss_scale")

_NOT_TRAINING = re.compile(r"(?:^|_)(?:eval|evaluation|val|valid|validation|test|dev)(?:_|$)")
_NOT_THE_LOSS = re.compile(
    r"(?:^|_)(?:scale|aux|auxiliary|z|balance|balancing|router|kl|mtp|runtime|min|max|std|grad|norm|delta|best|watchdog)"
    r"(?:_|$)"
)


def plain(name: str) -> str:
    """Return a name in one spelling: `train/loss`, `train.loss` and `Train Loss` are all `train_loss`."""
    return re.sub(r"[\s./:-]+|_+", "_", name.strip().lower())


def is_evaluation(name: str) -> bool:
    """Tell whether a name says that its values are not those of training."""
    return _NOT_TRAINING.search(plain(name)) is not None


def ranked(names: Iterable[str], wanted: tuple[str, ...]) -> list[str]:
    """Return those of the names that are wanted, the first wanted first."""
    order = {name: index for index, name in enumerate(wanted)}
    found = [name for name in names if plain(name) in order]
    return sorted(found, key=lambda name: (order[plain(name)], name))


def like_a_loss(names: Iterable[str]) -> list[str]:
    """Return names that must mean the training loss although they are none of the usual ones, the plainest first."""
    found = [
        name
        for name in names
        if re.search(r"(?:^|_)\w*loss(?:_|$)", plain(name))
        and not is_evaluation(name)
        and not _NOT_THE_LOSS.search(plain(name))
    ]
    return sorted(found, key=lambda name: (len(name), name))
