"""Whether a value fits its declared type, and how both are said in words.

The values are converted here and not by OmegaConf's structured configs: those leave the elements of a list of
dataclasses unchecked, take `3` for true and `true` for text, and do not name the key of a wrong list element.
"""

from __future__ import annotations

import difflib
import json
import math
import types
from collections.abc import Iterable
from typing import Any, Literal, Union, get_args, get_origin


class Mistake(Exception):  # noqa: N818 - never leaves this package: it becomes a ConfigError that names the file
    """One wrong setting, by its dotted key, before it is known in which file it stands."""

    def __init__(self, key: str, text: str) -> None:
        super().__init__(key, text)
        self.key = key
        self.text = text


def without_null(hint: Any) -> Any:
    """Strip `None` from an optional type."""
    kinds = _alternatives(hint)
    return kinds[0] if len(kinds) == 1 else hint


def _alternatives(hint: Any) -> tuple[Any, ...]:
    """Return what a type may be, without null."""
    if get_origin(hint) not in (Union, types.UnionType):
        return (hint,)
    return tuple(argument for argument in get_args(hint) if argument is not type(None))


def describe_type(hint: Any) -> str:
    """Say a declared type in a reader's words, without "or null"."""
    hint = without_null(hint)
    if len(kinds := _alternatives(hint)) > 1:
        return " or ".join(map(describe_type, kinds))
    arguments = get_args(hint)
    words = {int: "a whole number", float: "a number", str: "text", bool: "true or false", Any: "anything"}
    if hint in words:
        return words[hint]
    if get_origin(hint) is Literal:
        choices = ", ".join(map(str, arguments))
        return f"one of {choices}" if len(arguments) > 1 else choices
    if get_origin(hint) is tuple and arguments[-1] is not Ellipsis:
        return f"a list of {len(arguments)} values, each {describe_type(arguments[0])}"
    if get_origin(hint) is tuple:
        return f"a list, each {describe_type(arguments[0])}"
    return "a mapping"


def is_optional(hint: Any) -> bool:
    """Tell whether null is allowed."""
    return hint is Any or type(None) in get_args(hint)


def show(value: Any) -> str:
    """Write a value the way YAML has it, in one short line."""
    try:
        text = repr(value) if isinstance(value, str) else json.dumps(value)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def suggestion(word: str, known: Iterable[str], prefix: str = "") -> str:
    """Return "; did you mean X?" for the nearest known word, or nothing."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {prefix}{near[0]}?" if near else ""


def convert(hint: Any, value: Any, key: str) -> Any:
    """Return a value as its declared type has it (a list becomes a tuple).

    Raises:
        Mistake: when it does not fit.

    """
    if value is None and is_optional(hint):
        return None
    results = (_converted(choice, value) for choice in _alternatives(hint))
    converted = next((result for result in results if result is not _MISFIT), _MISFIT)
    if converted is _MISFIT:
        words = [word for choice in _alternatives(hint) if get_origin(choice) is Literal for word in get_args(choice)]
        hope = suggestion(value, words) if words and isinstance(value, str) else ""
        null = " or null" if is_optional(hint) else ""
        raise Mistake(key, f"{key} is {show(value)}; it must be {describe_type(hint)}{null}{hope}")
    return converted


_MISFIT = object()


def _converted(hint: Any, value: Any) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is tuple:
        return _converted_list(arguments, value)
    if hint is float or hint is int:
        return _converted_number(hint, value)
    if origin is Literal:
        fits = any(value == choice and type(value) is type(choice) for choice in arguments)
    elif origin is dict:
        fits = isinstance(value, dict) and all(isinstance(name, str) for name in value)
    else:
        fits = hint is Any or isinstance(value, hint)
    return value if fits else _MISFIT


def _converted_list(arguments: tuple[Any, ...], value: Any) -> Any:
    if not isinstance(value, list):
        return _MISFIT
    kinds = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else list(arguments)
    if len(kinds) != len(value):
        return _MISFIT
    converted = tuple(_converted(kind, element) for kind, element in zip(kinds, value, strict=True))
    return _MISFIT if any(element is _MISFIT for element in converted) else converted


def _converted_number(kind: type[int] | type[float], value: Any) -> Any:
    """Take numbers, and text that is one (an environment variable gives text), but not nan and not infinity."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return _MISFIT
    if kind is int and isinstance(value, float):
        return int(value) if value.is_integer() else _MISFIT
    try:
        number = kind(value)
        return number if math.isfinite(number) else _MISFIT
    except (ValueError, OverflowError):
        return _MISFIT


def require_positive(section: str, values: dict[str, float | None]) -> None:
    """Refuse what is not above 0; None is not set.

    Raises:
        ValueError: for the first of them.

    """
    for name, value in values.items():
        if value is not None and value <= 0:
            raise ValueError(f"{section}.{name} is {value}; it must be above 0")
