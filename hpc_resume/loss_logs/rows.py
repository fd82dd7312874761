"""Rows of named values, as most formats come down to, become curves."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpc_resume.loss_logs import names
from hpc_resume.loss_logs.curve import LoggedPoint, LossCurve, NoCurveError
from hpc_resume.loss_logs.lives import make_curves
from hpc_resume.loss_logs.numbers import number, step_number

Row = Mapping[str, Any]

_KIND_KEYS = ("split", "mode", "phase", "stage", "subset")
"""Where some logs say whether a row is of training or of an evaluation."""

_MOST_NAMED = 8
_LONGEST_VALUE = 40


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """Under which names a log has what the monitor wants to see."""

    loss: str
    step: str | None
    grad_norm: str | None
    loss_scale: str | None


def curves_of_rows(name: str, rows: Iterable[Row], notes: Iterable[str] = ()) -> list[LossCurve]:
    """Return the curves that the rows of one log make; at least one.

    Raises:
        NoCurveError: no row has a training loss; it names what they have.
    """
    usable = [row for row in rows if not _is_left_out(row)]
    columns = columns_of(usable)
    said = list(notes)
    if columns.step is None:
        said.append("the log gives no step, so its lines are counted: a step here is a logged value")
    if names.plain(columns.loss) not in names.LOSS:
        said.append(f"the loss is taken from {columns.loss!r}")
    if nulls := sum(columns.loss in row and row[columns.loss] is None for row in usable):
        said.append(f"rows left out because they have no value for the loss (null): {nulls}")
    curves = make_curves(name, _points(usable, columns), said)
    if not curves:
        raise NoCurveError(f"none of {len(usable)} rows has both a step ({columns.step}) and a loss ({columns.loss})")
    return curves


def columns_of(rows: Sequence[Row]) -> Columns:
    """Find out which names mean what.

    Raises:
        NoCurveError: none means a training loss; it says which there are.
    """
    known = list(dict.fromkeys(key for row in rows for key in row))
    training = [name for name in known if not names.is_evaluation(name)]
    loss = _fullest(rows, names.ranked(training, names.LOSS)) or _fullest(rows, names.like_a_loss(training))
    if loss is None:
        if unusable := _not_in_numbers(rows, training):
            raise NoCurveError(f"there is no training loss in it: {unusable}")
        few = ", ".join(known[:_MOST_NAMED]) + (", ..." if len(known) > _MOST_NAMED else "")
        found = f"{len(rows)} {'row' if len(rows) == 1 else 'rows'} with {few}" if known else "no rows"
        raise NoCurveError(f"there is no training loss in it, only {found}")
    with_loss = [row for row in rows if number(row.get(loss)) is not None]
    step = _fullest(with_loss, names.ranked(known, names.STEP), steps=True)
    return Columns(
        loss=loss,
        step=step,
        grad_norm=_fullest(with_loss, names.ranked(training, names.GRAD_NORM), least_share=0.0),
        loss_scale=_fullest(with_loss, names.ranked(training, names.LOSS_SCALE), least_share=0.0),
    )


def _not_in_numbers(rows: Sequence[Row], training: list[str]) -> str | None:
    """Say what stands where the loss should be, if there is such a place and anything stands there."""
    for name in (*names.ranked(training, names.LOSS), *names.like_a_loss(training)):
        text = next((str(row[name]) for row in rows if row.get(name) not in (None, "")), None)
        if text is not None:
            comma = re.fullmatch(r"[-+]?\d+,\d+(?:[eE][-+]?\d+)?", text.strip())
            advice = "; write its decimals with a point" if comma else ""
            return f"{name!r} has no numbers, but {text[:_LONGEST_VALUE]!r}{advice}"
    return None


def _is_left_out(row: Row) -> bool:
    """Tell whether a row is of an evaluation, or the summary that the Hugging Face Trainer ends with."""
    if "train_runtime" in row:
        return True
    return any(isinstance(row.get(key), str) and names.is_evaluation(row[key]) for key in _KIND_KEYS)


def _fullest(rows: Sequence[Row], found: list[str], *, steps: bool = False, least_share: float = 0.5) -> str | None:
    """Return the first name that has nearly as many values as the one that has most of them, None if none has any.

    Steps and extra values must be there in a share of all rows, or they are of no use.
    """
    read = step_number if steps else number
    counts = {name: sum(read(row.get(name)) is not None for row in rows) for name in found}
    most = max(counts.values(), default=0)
    if most == 0 or (steps and most < least_share * len(rows)):
        return None
    return next(name for name, count in counts.items() if count >= most / 2)


def _points(rows: Iterable[Row], columns: Columns) -> Iterable[LoggedPoint]:
    counted = 0
    for row in rows:
        loss = number(row.get(columns.loss))
        if loss is None:
            continue
        counted += 1
        step = counted if columns.step is None else step_number(row.get(columns.step))
        if step is None:
            continue
        yield LoggedPoint(
            step=step,
            loss=loss,
            grad_norm=None if columns.grad_norm is None else number(row.get(columns.grad_norm)),
            loss_scale=None if columns.loss_scale is None else number(row.get(columns.loss_scale)),
            skipped=row.get("skipped") is True,
        )
