from __future__ import annotations

import math
import random

import pytest

from hpc_resume.monitor import Monitor, MonitorSettings


@pytest.mark.parametrize(
    "setting",
    [
        {"spike_deviations": 0.0},
        {"spike_deviations": math.nan},
        {"spike_min_rise": -0.1},
        {"spike_min_rise_absolute": math.nan},
        {"spike_patience_steps": 0},
        {"spike_window_steps": 0},
        {"spike_warmup_steps": 129},
        {"loss_threshold": math.inf},
        {"loss_patience_steps": 0},
        {"skipped_patience_steps": 0},
        {"skipped_rate": 0.0},
        {"skipped_rate": 1.5},
    ],
    ids=lambda setting: " ".join(f"{name}={value}" for name, value in setting.items()),
)
def test_a_setting_that_means_nothing_is_refused_by_name(setting):
    [name] = setting
    with pytest.raises(ValueError, match=f"monitor.{name} is "):
        MonitorSettings(**setting)


def slow_rise(rng, deviation=0.1):
    """A curve whose loss is healthy, then high but in bounds for long, and then out of bounds; with skipped steps."""
    calm, high, out = rng.randint(60, 200), rng.randint(0, 120), rng.randint(1, 12)
    curve = [rng.gauss(2.0, deviation) for _ in range(calm)]
    curve += [2.0 + rng.uniform(2.5, 7.0) * deviation for _ in range(high)]
    curve += [rng.choice([2.0, 9.0, 9.0]) for _ in range(out)]
    return [(loss, rng.random() < 0.1) for loss in curve + [9.0] * 20]


def test_the_horizon_is_half_the_window_and_the_patience_or_the_window_of_the_rate():
    assert MonitorSettings().horizon_steps == 69
    assert MonitorSettings(spike_window_steps=32).horizon_steps == 64
    assert MonitorSettings(spike_window_steps=200, spike_patience_steps=10).horizon_steps == 110


@pytest.mark.parametrize("window", [40, 128, 200])
def test_no_incident_began_further_back_than_the_horizon_and_the_anomalies_that_passed(window, observed):
    settings = MonitorSettings(spike_window_steps=window, skipped_rate=0.3)
    furthest = 0
    for seed in range(60):
        monitor, healthy, passed = Monitor(settings), 0, 0
        for index, (loss, skipped) in enumerate(slow_rise(random.Random(seed))):
            verdict = monitor.observe(observed(index, loss, skipped=skipped))
            if verdict is not None and verdict.is_incident:
                assert verdict.onset_step > healthy - settings.horizon_steps - passed
                furthest = max(furthest, healthy - verdict.onset_step)
                break
            if verdict is not None:
                passed = max(passed, verdict.step - verdict.onset_step)
            elif not monitor.pending and not skipped:
                healthy = index + 1
    assert furthest > 10
