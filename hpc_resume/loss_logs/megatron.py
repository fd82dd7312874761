"""Text logs of Megatron-LM and its relatives: one line with all values every so many iterations.

`iteration  100/  500000 | consumed samples: ... | lm loss: 1.03E+01 | loss scale: 1.0 | grad norm: 1.2 |
number of skipped iterations: 0 | number of nan iterations: 0 |`
"""

from __future__ import annotations

import re
from typing import Any

_ITERATION = re.compile(r"iteration\s+(\d+)\s{0,9}/\s{0,9}\d+\s{0,9}\|")
_LOSS = ("lm loss", "lm_loss", "loss")
_COUNT_OF_NAN = "number of nan iterations"


def parse(line: str) -> dict[str, Any] | None:
    """Return the values of a line, None if it is none of Megatron's.

    The loss is a mean over the iterations that were not skipped, and is not printed when that is not above 0: no
    iteration was left, or the mean is NaN. So a line without it stands for a loss that is not a number.
    """
    match = _ITERATION.search(line)
    if match is None:
        return None
    parts = (part.partition(":") for part in line[match.end() :].split("|"))
    fields: dict[str, Any] = {key.strip(): value.strip() for key, colon, value in parts if colon and key.strip()}
    if not fields:
        return None
    loss = next((name for name in _LOSS if name in fields), None)
    skipped = _count(fields.get("number of skipped iterations"))
    if loss is None and _COUNT_OF_NAN in fields and not any("loss" in key and "scale" not in key for key in fields):
        fields["lm loss"] = "nan"
        fields["skipped"] = skipped > 0
    elif loss is not None and skipped > 0 and _is_zero(fields[loss]):
        # Versions that print a mean of nothing print it as 0.
        fields[loss] = "nan"
        fields["skipped"] = True
    return {"iteration": match.group(1), **fields}


def _count(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0


def _is_zero(text: str) -> bool:
    try:
        return float(text) == 0
    except ValueError:
        return False
