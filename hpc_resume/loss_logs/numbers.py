"""Numbers as logs spell them."""

from __future__ import annotations

from typing import Any

_LARGEST_STEP = 2**53
"""Beyond this a float, as which many logs have their steps, does not tell neighbours apart."""


def number(value: Any) -> float | None:
    """Return a number, also NaN or infinity and however it is spelled; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except ValueError:
        return None
    except OverflowError:
        return float("inf") if isinstance(value, int) and value > 0 else float("-inf")


def counted(number: int, noun: str) -> str:
    """Return a number of things in words: `1 point`, `1,200 points`, `2 near misses`."""
    return f"{number:,} {noun if number == 1 else f'{noun}es' if noun.endswith('s') else f'{noun}s'}"


def step_number(value: Any) -> int | None:
    """Return a step: a whole number from 0 on, however it is spelled (`10`, `10.0`, `1e1`); None for anything else."""
    found = number(value)
    if found is None or not 0 <= found <= _LARGEST_STEP or not found.is_integer():
        return None
    return int(found)
