"""CSV with a header, also as wandb exports it; and plain columns of `step loss [grad_norm]` without one.

wandb names its columns `run - metric`, one group of columns for each run that was in the chart, and adds bounds of
what it drew, `run - metric__MIN`.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path

from hpc_resume.errors import ConfigError
from hpc_resume.loss_logs import names
from hpc_resume.loss_logs.curve import LoggedPoint, LossCurve, NoCurveError
from hpc_resume.loss_logs.lives import make_curves
from hpc_resume.loss_logs.numbers import number, step_number
from hpc_resume.loss_logs.opening import open_text
from hpc_resume.loss_logs.rows import Row, curves_of_rows

_SEPARATORS = ",;\t"
_BETWEEN_RUN_AND_METRIC = " - "


def read_csv(path: Path) -> list[LossCurve]:
    """Read a table with a header: one log, or one for each run of a wandb export.

    Raises:
        NoCurveError: there is no header, or none of its names means a training loss.
        ConfigError: it is no CSV.
    """
    with open_text(path) as file:
        lines = (line for line in file if line.strip() and not line.lstrip().startswith("#"))
        first = next(lines, "")
        try:
            header = next(_split([first], first), [])
            if len(header) < 2 or any(number(cell) is not None for cell in header):
                raise NoCurveError("its first line is no header of a table")
            rows = [dict(zip(header, cells, strict=False)) for cells in _split(lines, first)]
        except csv.Error as error:
            raise ConfigError(f"it can't be read as CSV: {error}") from error
    groups = _groups(header)
    if not groups:
        return curves_of_rows(str(path), rows)
    return list(_curves_of_runs(path, rows, groups))


def _split(lines: Iterable[str], header: str) -> Iterator[list[str]]:
    """Yield the cells of each line, separated as those of the header are: by a character, or else by spaces."""
    separator = max(_SEPARATORS, key=header.count)
    if separator in header:
        yield from csv.reader(lines, delimiter=separator, skipinitialspace=True)
    else:
        yield from (line.split() for line in lines)


def _groups(header: list[str]) -> dict[str, dict[str, str]]:
    """Return for each run of a wandb export its columns by metric; empty if this is none."""
    groups: dict[str, dict[str, str]] = {}
    for column in header:
        run, between, metric = column.rpartition(_BETWEEN_RUN_AND_METRIC)
        if between and not metric.endswith(("__MIN", "__MAX")):
            groups.setdefault(run, {})[metric] = column
    return groups


def _curves_of_runs(path: Path, rows: list[dict[str, str]], groups: dict[str, dict[str, str]]) -> Iterator[LossCurve]:
    shared = [name for name in rows[0] if _BETWEEN_RUN_AND_METRIC not in name] if rows else []
    refused: NoCurveError | None = None
    found = False
    for run, columns in groups.items():
        chosen = {name: name for name in shared} | columns
        own: list[Row] = [{short: row.get(column) for short, column in chosen.items()} for row in rows]
        try:
            curves = curves_of_rows(f"{path}: {run}", own)
        except NoCurveError as error:
            refused = error
            continue
        found = True
        yield from curves
    if not found:
        raise refused or NoCurveError("there is no row below its header")


def read_columns(path: Path) -> list[LossCurve]:
    """Read lines of two or three numbers: step, loss and, if it is there, the gradient norm.

    Raises:
        NoCurveError: some line is something else.
    """
    with open_text(path) as file:
        points = list(_points(file))
    curves = make_curves(str(path), points)
    if not curves:
        raise NoCurveError("it has no lines of `step loss [grad_norm]`")
    return curves


def _points(lines: Iterable[str]) -> Iterator[LoggedPoint]:
    for line in lines:
        cells = line.replace(",", " ").replace(";", " ").split()
        if not cells or cells[0].startswith("#"):
            continue
        values = [number(cell) for cell in cells]
        step, loss = step_number(cells[0]), values[1] if len(values) > 1 else None
        if step is None or loss is None or len(values) > 3:
            raise NoCurveError("its lines are not `step loss [grad_norm]`")
        yield LoggedPoint(step=step, loss=loss, grad_norm=values[2] if len(values) == 3 else None)


def is_header(line: str) -> bool:
    """Tell whether a line could be the header of a table with a loss in it: names only, one of them that of a loss."""
    cells = [cell.strip() for cell in next(_split([line], line), [])]
    metrics = [cell.rpartition(_BETWEEN_RUN_AND_METRIC)[2] for cell in cells]
    if len(cells) < 2 or any(number(cell) is not None for cell in cells):
        return False
    return bool(names.ranked(metrics, names.LOSS) or names.like_a_loss(metrics))
