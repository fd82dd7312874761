from __future__ import annotations

import math
from random import Random

import pytest
from monitor.curves import fallen, observed

from hpc_resume.monitor import Monitor, MonitorSettings
from hpc_resume.monitor.settings import LARGEST_BLOCK_STEPS, RATE_WINDOW_STEPS


@pytest.mark.parametrize(
    "setting",
    [
        {"spike_min_rise": -0.1},
        {"spike_min_rise": math.nan},
        {"plateau_min_rise": -0.1},
        {"divergence_min_rise": math.nan},
        {"spike_patience_steps": 0},
        {"spike_window_steps": 0},
        {"spike_warmup_steps": 0},
        {"spike_warmup_steps": 129},
        {"zero_patience_steps": 0},
        {"slow_rises": "ignore"},
        {"loss_watchdog_threshold": math.inf},
        {"loss_watchdog_threshold": math.nan},
        {"loss_watchdog_patience": 0},
        {"skipped_patience_steps": 0},
        {"skipped_rate": 0.0},
        {"skipped_rate": 1.5},
        {"skipped_rate": math.nan},
        {"grace_steps": -1},
    ],
    ids=lambda setting: " ".join(f"{name}={value}" for name, value in setting.items()),
)
def test_a_setting_that_means_nothing_is_refused_by_name(setting):
    [name] = setting
    with pytest.raises(ValueError, match=f"monitor.{name} is ") as caught:
        MonitorSettings(**setting)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "setting",
    [{"spike_min_rise": 0.0}, {"grace_steps": 0}, {"skipped_rate": 1.0}, {"loss_watchdog_threshold": -5.0}],
    ids=str,
)
def test_a_setting_at_its_limit_is_taken(setting):
    MonitorSettings(**setting)


def test_the_horizon_is_the_longest_time_over_which_steps_are_judged_together():
    assert MonitorSettings().horizon_steps == RATE_WINDOW_STEPS >= LARGEST_BLOCK_STEPS


def sick(rng, noise=0.03):
    """A loss that has fallen and becomes high, slowly or at once, by little or much; and its skipped steps and NaN."""
    calm = rng.choice([700, 2000]) + rng.randrange(100)
    losses = fallen(calm + 500, noise=noise, seed=rng.randrange(10_000))
    share, over = rng.choice([0.03, 0.06, 0.2, 1.0]), rng.choice([1, 1, 10, 100, 400])
    skips, nan = rng.choice([0.0, 0.1, 0.4]), rng.choice([0, 0, 4, 200])
    found = []
    for step, loss in enumerate(losses):
        high = loss + 2.5 * share * min(1.0, max(0.0, (step - calm) / over))
        # A stretch of skipped NaN within a block of steps.
        broken = calm - nan - 10 <= step < calm - 10
        skipped = broken or rng.random() < (skips if step > calm else 0.02)
        found.append((math.nan if broken else high, skipped))
    return found


def test_no_incident_began_further_back_than_the_horizon_before_the_last_healthy_step():
    settings = MonitorSettings(loss_watchdog_threshold=4.5, skipped_rate=0.3)
    furthest: dict[str, int] = {}
    for seed in range(30):
        monitor, healthy = Monitor(settings), 0
        for index, (loss, skipped) in enumerate(sick(Random(seed))):
            verdict = monitor.observe(observed(index, loss, skipped=skipped))
            if verdict is not None and verdict.is_incident:
                back = healthy - verdict.onset_step
                assert back < settings.horizon_steps
                furthest[verdict.detector] = max(furthest.get(verdict.detector, -1000), back)
            elif verdict is None and not monitor.pending and not skipped:
                healthy = index + 1
    # Without these it would prove little: each reaches back before the last step that was held to be healthy.
    assert {"spike", "plateau", "divergence", "non_finite"} <= set(furthest)
    assert furthest["spike"] < 0
    assert 0 <= furthest["plateau"] < 8
    assert 8 <= furthest["divergence"] < LARGEST_BLOCK_STEPS
    assert furthest["non_finite"] > 20
