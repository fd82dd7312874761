"""A replay is the monitor that live runs have, shown what was logged."""

from __future__ import annotations

import math
import random

from hpc_resume.loss_logs import LoggedPoint, LossCurve, replay
from hpc_resume.loss_logs.replay import observations
from hpc_resume.monitor import Monitor, MonitorSettings, Observation

DEFAULTS = MonitorSettings()


def curve(losses: list[float], *, every: int = 1) -> LossCurve:
    points = tuple(LoggedPoint(step=every * index, loss=loss) for index, loss in enumerate(losses, 1))
    return LossCurve(name="curve", points=points)


def quiet(steps: int) -> list[float]:
    noise = random.Random(1)
    return [3 + noise.gauss(0, 0.02) for _ in range(steps)]


def test_nothing_is_said_about_a_quiet_curve() -> None:
    assert replay(curve(quiet(500)), DEFAULTS).verdicts == ()


def test_a_loss_that_is_not_a_number_is_an_incident_at_once() -> None:
    verdicts = replay(curve([*quiet(100), math.nan, *quiet(100)]), DEFAULTS).verdicts
    assert (verdicts[0].kind, verdicts[0].onset_step, verdicts[0].step) == ("incident", 101, 101)


def test_a_rise_that_stays_is_an_incident_since_its_first_step() -> None:
    verdicts = replay(curve([*quiet(200), *(9 + loss for loss in quiet(60))]), DEFAULTS).verdicts
    first = next(verdict for verdict in verdicts if verdict.is_incident)
    assert first.onset_step == 201
    assert 201 <= first.step <= 220


def test_the_settings_decide() -> None:
    losses = [3.0, 3.0, 5.0, 5.0, 3.0]
    settings = MonitorSettings(loss_watchdog_threshold=4.0, loss_watchdog_patience=2)
    (verdict,) = replay(curve(losses), settings).verdicts
    assert (verdict.detector, verdict.onset_step, verdict.step) == ("threshold", 3, 4)
    assert replay(curve(losses), DEFAULTS).verdicts == ()


def test_an_anomaly_at_the_very_end_is_judged_as_at_the_end_of_a_run() -> None:
    settings = MonitorSettings(loss_watchdog_threshold=4.0, loss_watchdog_patience=3)
    replayed = replay(curve([3.0, 3.0, 5.0]), settings)
    (verdict,) = replayed.verdicts
    assert (verdict.kind, verdict.onset_step) == ("incident", 3)
    assert replayed.at_end is verdict


def test_what_was_called_while_the_log_went_on_is_not_of_its_end() -> None:
    settings = MonitorSettings(loss_watchdog_threshold=4.0, loss_watchdog_patience=2)
    replayed = replay(curve([3.0, 5.0, 5.0]), settings)
    assert len(replayed.verdicts) == 1
    assert replayed.at_end is None


def test_it_is_what_a_live_monitor_says_of_the_same_steps() -> None:
    losses = [*quiet(150), 9.0, 9.0, *quiet(50), math.inf, *quiet(10), *(20.0 for _ in range(30))]
    live = Monitor(DEFAULTS)
    said = [
        live.observe(Observation(step=step, start_position=step - 1, position=step, loss=loss))
        for step, loss in enumerate(losses, 1)
    ]
    expected = tuple(verdict for verdict in (*said, live.close()) if verdict is not None)
    assert expected
    assert replay(curve(losses), DEFAULTS).verdicts == expected


def test_each_point_stands_for_the_steps_since_the_one_before() -> None:
    points = (LoggedPoint(step=20, loss=1.0), LoggedPoint(step=30, loss=1.0), LoggedPoint(step=40, loss=1.0))
    seen = [(o.start_position, o.position) for o in observations(LossCurve(name="", points=points))]
    assert seen == [(10, 20), (20, 30), (30, 40)]


def test_what_a_log_says_beside_the_loss_is_passed_on() -> None:
    point = LoggedPoint(step=0, loss=math.nan, grad_norm=2.0, loss_scale=1024.0, skipped=True)
    (seen,) = observations(LossCurve(name="", points=(point,)))
    assert (seen.step, seen.grad_norm, seen.loss_scale, seen.skipped) == (0, 2.0, 1024.0, True)
