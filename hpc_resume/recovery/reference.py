"""The rules of recovery as a table, from the code that carries them.

`python -m hpc_resume.recovery.reference` prints it; `ARCHITECTURE.md` holds a copy.
"""

from __future__ import annotations

import sys

from hpc_resume.recovery.decisions import RULES


def render() -> str:
    """Return all rules as a Markdown table, in the order of `RULES`."""
    rows = [f"| {name} | {sentence} |" for name, sentence in RULES.items()]
    return "\n".join(["| Rule | What it does |", "|---|---|", *rows]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render())
