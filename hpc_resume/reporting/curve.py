"""Metrics of several attempts as curves: what survived, and what was given up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hpc_resume.recovery import History


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """Consecutive steps of one attempt, all given up or none."""

    attempt: int
    abandoned: bool
    rows: list[dict[str, Any]]


def split_curves(attempts: list[tuple[int, list[dict[str, Any]]]], history: History) -> list[Curve]:
    """Split each attempt's rows where a later attempt went back to before them."""
    resumed = {a.started.attempt: a.resumed.step for a in history.attempts if a.resumed is not None}
    curves = []
    for number, rows in attempts:
        later = [step for attempt, step in resumed.items() if attempt > number]
        kept_to = min(later, default=None)
        steps = [row for row in rows if "step" in row]
        kept = [row for row in steps if kept_to is None or row["step"] <= kept_to]
        given_up = [row for row in steps if kept_to is not None and row["step"] > kept_to]
        for abandoned, part in ((False, kept), (True, given_up)):
            if part:
                curves.append(Curve(attempt=number, abandoned=abandoned, rows=part))
    return curves
