"""The monitor over an old log: the very code that watches live runs, shown what was logged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hpc_resume.loss_logs.curve import LossCurve
from hpc_resume.monitor import Monitor, MonitorSettings, Observation, Verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class Replay:
    """What the monitor said about a curve."""

    verdicts: tuple[Verdict, ...]
    """In the order in which it said it."""

    at_end: Verdict | None = None
    """The last of them, if it was reached only because the log ends: what was still being watched was judged then."""


def replay(curve: LossCurve, settings: MonitorSettings) -> Replay:
    """Return everything that the monitor would have said about a curve, in the order in which it would have.

    A live run would have gone back at the first incident. Here the same monitor simply goes on with what was logged,
    so what follows is what it makes of a training in which nobody acted.
    """
    monitor = Monitor(settings)
    spoken = [monitor.observe(observation) for observation in observations(curve)]
    at_end = monitor.close()
    return Replay(verdicts=tuple(verdict for verdict in (*spoken, at_end) if verdict is not None), at_end=at_end)


def observations(curve: LossCurve) -> Iterator[Observation]:
    """Yield the points as the monitor is told them; positions are steps, since logs seldom say how many samples.

    A point begins where the one before it ended: what lies between was logged with it, or not at all.
    """
    before = max(0, curve.points[0].step - curve.interval)
    for point in curve.points:
        yield Observation(
            step=point.step,
            start_position=before,
            position=point.step,
            loss=point.loss,
            grad_norm=point.grad_norm,
            loss_scale=point.loss_scale,
            skipped=point.skipped,
        )
        before = point.step
