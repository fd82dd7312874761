"""Text logs into which rows were printed as Python or JSON mappings, as the Hugging Face Trainer does.

`{'loss': 1.2345, 'grad_norm': 0.31, 'learning_rate': 2e-05, 'epoch': 0.1}`, alone in its line or behind a progress
bar. Newer versions print the numbers in quotes. They give no step.
"""

from __future__ import annotations

import re
from typing import Any

_MAPPING = re.compile(r"\{[^{}]*\}")
_PAIR = re.compile(r"""(['"])([\w /.:-]+)\1\s*:\s*(?:tensor\(\s*)?(['"]?)([-+.\w]+)\3""")


def parse(line: str) -> dict[str, Any] | None:
    """Return the last mapping of a line that has a loss, else the last that has any values, else None."""
    if "{" not in line:
        return None
    found = [{key: value for _, key, _, value in _PAIR.findall(text)} for text in _MAPPING.findall(line)]
    rows = [row for row in found if row]
    return next((row for row in reversed(rows) if any("loss" in key for key in row)), rows[-1] if rows else None)
