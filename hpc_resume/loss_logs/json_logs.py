"""JSON: the Hugging Face Trainer's `trainer_state.json`, lists of rows, and one object a line.

The Trainer's `log_history` holds a row for each logging step, and others for evaluations, which have no `loss`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hpc_resume.errors import ConfigError
from hpc_resume.loss_logs.curve import LossCurve, NoCurveError
from hpc_resume.loss_logs.numbers import step_number
from hpc_resume.loss_logs.opening import open_text
from hpc_resume.loss_logs.rows import Row, curves_of_rows

_HISTORIES = ("log_history", "history", "logs", "log", "train", "metrics")


def read_json(path: Path) -> list[LossCurve]:
    """Read one JSON document that holds a list of rows.

    Raises:
        NoCurveError: it holds none with a training loss.
        ConfigError: it is no JSON, or only the beginning of it.
    """
    with open_text(path) as file:
        try:
            document = json.load(file)
        except RecursionError as error:
            raise ConfigError("its JSON is nested too deeply to be a log") from error
        except ValueError as error:
            raise ConfigError(f"it is no whole JSON document (cut off while it was written?): {error}") from error
    rows = _rows_in(document)
    if rows is None:
        raise NoCurveError("its JSON holds no list of rows, such as the `log_history` of a trainer_state.json")
    return curves_of_rows(str(path), rows)


def _rows_in(document: Any) -> list[Row] | None:
    if isinstance(document, dict):
        document = next((document[key] for key in _HISTORIES if isinstance(document.get(key), list)), None)
    if not isinstance(document, list):
        return None
    return [flat(row) for row in document if isinstance(row, dict)]


def read_json_lines(paths: Iterable[Path], name: str) -> list[LossCurve]:
    """Read files with one JSON object a line, one after the other as one log; a line that is none is left out.

    Raises:
        NoCurveError: no line, or hardly any, is a JSON object with a training loss.
    """
    rows: list[Row] = []
    wrong = 0
    for path in paths:
        with open_text(path) as file:
            for line in file:
                row = _row(line)
                if row is not None:
                    rows.append(row)
                elif line.strip():
                    wrong += 1
    if len(rows) < wrong or not rows:
        raise NoCurveError("its lines are no JSON objects")
    notes = [f"lines left out because they are no JSON objects: {wrong}"] if wrong else []
    return curves_of_rows(name, rows, notes)


def _row(line: str) -> Row | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return flat(row) if isinstance(row, dict) else None


def flat(row: Mapping[str, Any]) -> Row:
    """Bring the values of inner mappings up: `{"train": {"loss": 1}}` has `train/loss`."""
    if not any(isinstance(value, dict) for value in row.values()):
        return row
    found: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, dict):
            found.update({f"{key}/{inner}": each for inner, each in value.items()})
        else:
            found[key] = value
    return found


def global_step(path: Path) -> int:
    """Return how far the training was when a `trainer_state.json` was written; -1 if it does not say."""
    try:
        with open_text(path) as file:
            document = json.load(file)
    except (ConfigError, ValueError, RecursionError):
        return -1
    step = step_number(document.get("global_step")) if isinstance(document, dict) else None
    return -1 if step is None else step
