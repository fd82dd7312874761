from __future__ import annotations

import pytest

from hpc_resume.config.schema import TrainingConfig
from hpc_resume.trainers.schedule import learning_rate


def rates(**settings: object) -> list[float]:
    training = TrainingConfig(steps=10, learning_rate=1.0, **settings)  # type: ignore[arg-type]
    return [learning_rate(training, step) for step in range(1, 11)]


def test_the_warmup_rises_to_the_peak() -> None:
    assert rates(warmup_steps=4, schedule="constant")[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_the_rate_falls_from_the_peak_to_the_end_and_never_below_it(schedule: str) -> None:
    found = rates(warmup_steps=2, schedule=schedule, min_learning_rate=0.1)
    assert found[1] == 1.0
    assert found[1:] == sorted(found[1:], reverse=True)
    assert found[-1] == pytest.approx(0.1)


def test_without_warmup_the_first_step_is_already_at_full_rate() -> None:
    assert rates(schedule="constant") == [1.0] * 10
