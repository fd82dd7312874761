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
    """Split each attempt's rows where training later went back to before them, in another attempt or in place."""
    resumed = {a.started.attempt: a.resumed.step for a in history.attempts if a.resumed is not None}
    stretches: list[tuple[int, int, list[dict[str, Any]]]] = []
    for number, rows in attempts:
        parts = _stretches([row for row in rows if "step" in row])
        if number in resumed and not parts:
            stretches.append((number, resumed[number], []))
        stretches += [(number, part[0]["step"] - 1, part) for part in parts]
    curves: list[Curve] = []
    for index, (number, _, rows) in enumerate(stretches):
        kept_to = min((start for _, start, _ in stretches[index + 1 :]), default=None)
        kept = [row for row in rows if kept_to is None or row["step"] <= kept_to]
        given_up = rows[len(kept) :]
        curves += [
            Curve(attempt=number, abandoned=abandoned, rows=part)
            for abandoned, part in ((False, kept), (True, given_up))
            if part
        ]
    return curves


def _stretches(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Cut rows where the step goes back."""
    parts: list[list[dict[str, Any]]] = []
    for row in rows:
        if not parts or row["step"] <= parts[-1][-1]["step"]:
            parts.append([])
        parts[-1].append(row)
    return parts
