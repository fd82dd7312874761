"""Recognising what a log is, by its name and its content, and reading it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from hpc_resume.errors import ConfigError
from hpc_resume.loss_logs.curve import LossCurve, NoCurveError
from hpc_resume.loss_logs.event_files import is_event_file, read_event_files
from hpc_resume.loss_logs.find import STATE_FILE, LogFiles, find_logs
from hpc_resume.loss_logs.json_logs import read_json, read_json_lines
from hpc_resume.loss_logs.numbers import number
from hpc_resume.loss_logs.opening import cut_off, head_of
from hpc_resume.loss_logs.tables import is_header, read_columns, read_csv
from hpc_resume.loss_logs.text_log import read_text_log

LARGEST_UNASKED_BYTES = 1 << 28
"""A larger JSON file is read only if somebody names it: it would be held in memory as a whole, and hardly be a log."""

Reader = Callable[[Path], list[LossCurve]]

FORMATS = (
    "trainer_state.json, JSON lines, CSV, columns of `step loss`, text logs as of Megatron, nanoGPT, llm.c or the "
    "Hugging Face Trainer, TensorBoard event files"
)


def read_curves(path: Path) -> list[LossCurve]:
    """Return the loss curves of a file, or of all logs in a folder and below it.

    Raises:
        ConfigError: in one line, for the first of them that holds no curve or can't be read.
    """
    return [curve for log in find_logs(path) for curve in read_log(log)]


def read_log(log: LogFiles) -> list[LossCurve]:
    """Return the loss curves of one log; at least one.

    Raises:
        NoCurveError: it can be read, but holds no training loss.
        ConfigError: it can't be read.
    """
    place = log.name if len(log.files) > 1 else log.files[0]
    try:
        for path in log.files:
            if path.is_dir():
                # A folder that could not be searched stands for itself; this says why.
                any(path.iterdir())
        _refuse_huge(log)
        if all(is_event_file(path) for path in log.files):
            return read_event_files(log.files, log.name)
        if len(log.files) > 1:
            return read_json_lines(log.files, log.name)
        return _noted(_read_file(log.files[0], log.name), log.files[0])
    except NoCurveError as error:
        raise NoCurveError(f"{place}: {_one_line(error)}") from error
    except ConfigError as error:
        raise ConfigError(f"{place}: {_one_line(error)}") from error
    except OSError as error:
        raise ConfigError(f"{place}: it can't be read: {error.strerror or error}") from error


def _refuse_huge(log: LogFiles) -> None:
    if log.may_be_anything and log.files[0].stat().st_size > LARGEST_UNASKED_BYTES:
        raise NoCurveError(f"it has more than {LARGEST_UNASKED_BYTES >> 20} MiB; name it to have it read")


def _noted(curves: list[LossCurve], path: Path) -> list[LossCurve]:
    if not cut_off(path):
        return curves
    note = "the compressed file is cut off; what could be decompressed is used"
    return [replace(curve, notes=(note, *curve.notes)) for curve in curves]


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _read_file(path: Path, name: str) -> list[LossCurve]:
    """Try the formats that the file may have, the likeliest first; the first complaint is the one that is told."""
    first: NoCurveError | None = None
    least: NoCurveError | None = None
    for reader in _readers(path, head_of(path), name):
        try:
            return reader(path)
        except _NoJsonError as error:
            # It only began like JSON: what is wrong with it as such is told if there is nothing else to tell.
            least = error
        except NoCurveError as error:
            first = first or error
    first = first or least
    raise NoCurveError(f"{first}; what is known are {FORMATS}") from first


def _readers(path: Path, head: str, name: str) -> Iterator[Reader]:
    """Yield the readers that may take a file."""
    endings = [ending.lower() for ending in path.suffixes]
    start = head.lstrip()
    row = _first_row(start)

    def json_lines(log: Path) -> list[LossCurve]:
        return read_json_lines([log], name)

    if path.name.startswith(STATE_FILE):
        yield read_json
        return
    if ".jsonl" in endings:
        yield json_lines
    elif _is_object(start.partition("\n")[0]):
        yield _json_if_it_is
        yield json_lines
    elif ".json" in endings:
        yield read_json
        return
    elif start.startswith(("{", "[")):
        # A text log may begin like that, too.
        yield _json_if_it_is
    if ".csv" in endings or ".tsv" in endings or is_header(row):
        yield read_csv
    if number(row.replace(",", " ").partition(" ")[0]) is not None:
        yield read_columns
    yield read_text_log


def _json_if_it_is(path: Path) -> list[LossCurve]:
    try:
        return read_json(path)
    except NoCurveError:
        raise
    except ConfigError as error:
        raise _NoJsonError(str(error)) from error


class _NoJsonError(NoCurveError):
    """What looked like JSON is none."""


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _first_row(start: str) -> str:
    rows = (line.strip() for line in start.splitlines())
    return next((row for row in rows if row and not row.startswith("#")), "")
