from __future__ import annotations

import math

import pytest

from hpc_resume.monitor import MonitorSettings


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
