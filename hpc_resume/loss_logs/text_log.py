"""Free text in which some lines hold values: whichever of the known forms has most of them is the log's."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpc_resume.loss_logs import megatron, printed_dicts, step_lines
from hpc_resume.loss_logs.curve import LossCurve, NoCurveError
from hpc_resume.loss_logs.opening import open_text
from hpc_resume.loss_logs.rows import curves_of_rows

_FORMS: tuple[Callable[[str], dict[str, Any] | None], ...] = (megatron.parse, step_lines.parse, printed_dicts.parse)
"""A line is of the first that takes it."""

_LONGEST_LINE = 20_000

_TERMINAL = re.compile(r"\x1b\[[0-9;?]{0,32}[A-Za-z]")
"""What colours a line on a terminal, or moves the cursor."""


def read_text_log(path: Path) -> list[LossCurve]:
    """Read the curves out of a text log.

    Raises:
        NoCurveError: no line has a training loss in a form that is known.
    """
    rows: list[list[dict[str, Any]]] = [[] for _ in _FORMS]
    with open_text(path) as file:
        for line in file:
            # What is longer is no line of a log, and patterns would take long for it.
            text = line[:_LONGEST_LINE]
            if "\x1b" in text:
                text = _TERMINAL.sub("", text)
            for form, taken in zip(_FORMS, rows, strict=True):
                row = form(text)
                if row is not None:
                    taken.append(row)
                    break
    refused: NoCurveError | None = None
    for taken in sorted(rows, key=len, reverse=True):
        if not taken:
            continue
        try:
            return curves_of_rows(str(path), taken)
        except NoCurveError as error:
            refused = refused or error
    raise refused or NoCurveError("no line of it has a step with its training loss in a form that is known")
