"""Plain mappings to a RunConfig and back; every value is checked on the way in."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from hpc_resume.config.fields import element_section, hints, is_section, unknown_key
from hpc_resume.config.schema import RunConfig
from hpc_resume.config.values import Mistake, convert, show

Section = TypeVar("Section")


def build(owner: type[Section], values: Any, key: str = "") -> Section:
    """Make one section from what the user wrote; what they left out keeps the section's own default.

    Raises:
        Mistake: for the first value that cannot be used.

    """
    if not isinstance(values, dict):
        hint = "; remove the line or put settings below it" if values is None else ""
        raise Mistake(key, f"{key} is {show(values)}; it must be a section with settings of its own{hint}")
    arguments = {}
    for name, value in values.items():
        if name not in hints(owner):
            raise unknown_key(owner, key, name)
        arguments[name] = _field(hints(owner)[name], value, f"{key}.{name}" if key else name)
    try:
        return owner(**arguments)
    except ValueError as error:
        raise _with_index(key, str(error)) from error


def _field(hint: Any, value: Any, key: str) -> Any:
    if is_section(hint):
        return build(hint, value, key)
    if value == "???":
        raise Mistake(key, f"{key} is '???', which stands for a value to fill in; give one ({key}=...)")
    element = element_section(hint)
    if element is None:
        return convert(hint, value, key)
    if not isinstance(value, list):
        raise Mistake(key, f"{key} is {show(value)}; it must be a list of mappings")
    return tuple(build(element, each, f"{key}[{index}]") for index, each in enumerate(value))


def _with_index(key: str, text: str) -> Mistake:
    """Name the list element in a section's own complaint, which says `faults.step` for `faults[1].step`."""
    if "[" in key:
        text = text.replace(f"{key.partition('[')[0]}.", f"{key}.")
    return Mistake(text.partition(" ")[0], text)


def to_values(config: RunConfig) -> dict[str, Any]:
    """Return a RunConfig as mappings, lists and scalars that share nothing with it."""
    values: dict[str, Any] = _plain(dataclasses.asdict(config))
    return values


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value
