"""Which settings the schema has: finding one by its dotted key."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, TypeGuard, get_args, get_origin, get_type_hints

from hpc_resume.config.schema import PathMark, RunConfig
from hpc_resume.config.values import Mistake, describe_type, show, suggestion, without_null


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One setting of the schema, or a value inside a free mapping such as `model.config`."""

    key: str
    owner: type[Any]
    name: str
    rest: tuple[str, ...]
    """Keys inside a free mapping, outermost first."""

    @property
    def path(self) -> tuple[str, ...]:
        """Every key on the way, outermost first."""
        head = self.key.split(".")
        return tuple(head[: len(head) - len(self.rest)]) + self.rest

    @property
    def hint(self) -> Any:
        """Declared type; anything goes inside a free mapping."""
        return Any if self.rest else hints(self.owner)[self.name]

    @property
    def path_mark(self) -> PathMark | None:
        """How a path is meant, if it is one."""
        return None if self.rest else path_marks(self.owner).get(self.name)


def hints(owner: type[Any]) -> dict[str, Any]:
    """Declared type of every field of a section, in order."""
    found: dict[str, Any] = _resolved_hints(owner)  # type: ignore[arg-type, unused-ignore]
    return found


@functools.cache
def _resolved_hints(owner: Any) -> dict[str, Any]:
    resolved = get_type_hints(owner)
    return {field.name: resolved[field.name] for field in dataclasses.fields(owner)}


def path_marks(owner: type[Any]) -> dict[str, PathMark]:
    """Fields of a section that hold paths, and how each is meant."""
    marked = {field.name: field.metadata.get("path") for field in dataclasses.fields(owner)}
    return {name: mark for name, mark in marked.items() if mark}


def is_section(hint: Any) -> TypeGuard[type[Any]]:
    """Tell whether a declared type is a section of its own."""
    return isinstance(hint, type) and dataclasses.is_dataclass(hint)


def element_section(hint: Any) -> type[Any] | None:
    """Return the section that a list is made of, or None for any other type."""
    arguments = get_args(hint)
    return arguments[0] if get_origin(hint) is tuple and is_section(arguments[0]) else None


def locate(key: str) -> Setting:
    """Find the setting that a dotted key names.

    Raises:
        Mistake: when there is none, or it is a whole section.

    """
    owner: type[Any] = RunConfig
    parts = key.split(".")
    for index, part in enumerate(parts):
        if part not in hints(owner):
            raise unknown_key(owner, ".".join(parts[:index]), part)
        hint, rest = hints(owner)[part], tuple(parts[index + 1 :])
        if not is_section(hint):
            if rest and get_origin(without_null(hint)) is not dict:
                outer = key.removesuffix("." + ".".join(rest))
                raise Mistake(key, f"{key} is not a setting; {outer} is {describe_type(hint)}")
            return Setting(key=key, owner=owner, name=part, rest=rest)
        owner = hint
    inside = ", ".join(f"{key}.{name}" for name in list(hints(owner))[:2])
    raise Mistake(key, f"{key} is a whole section; set what is in it one by one ({inside}, ...)")


def unknown_key(owner: type[Any], prefix: str, name: str) -> Mistake:
    """Say that a section has no such setting, and which one may have been meant."""
    key = f"{prefix}.{name}" if prefix else str(name)
    if "[" in str(name):
        return Mistake(key, f"{key} is not a setting; give the whole list {key.partition('[')[0]}=[...]")
    elsewhere = [other for other in every_key(RunConfig) if other.rpartition(".")[2] == name]
    near = suggestion(str(name), hints(owner), prefix=f"{prefix}." if prefix else "")
    hope = (f"; did you mean {elsewhere[0]}?" if elsewhere else near) or f"; there are {', '.join(hints(owner))}"
    return Mistake(key, f"{key} is not a setting{hope}")


def every_key(owner: type[Any], prefix: str = "") -> list[str]:
    """List the dotted keys of all settings of a section and of the sections inside it."""
    keys = []
    for name, hint in hints(owner).items():
        keys += every_key(hint, f"{prefix}{name}.") if is_section(hint) else [prefix + name]
    return keys


def set_value(values: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    """Set one value in nested mappings, and make the mappings on the way.

    Raises:
        Mistake: when something on the way is no mapping.

    """
    key = ".".join(path)
    for depth, name in enumerate(path[:-1], start=1):
        if values.get(name) is None:
            values[name] = {}
        values = values[name]
        if not isinstance(values, dict):
            raise Mistake(key, f"{key} cannot be set: {'.'.join(path[:depth])} is {show(values)}, not a mapping")
    values[path[-1]] = value
