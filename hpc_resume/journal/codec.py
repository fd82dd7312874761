"""Events as JSON objects and back.

An event is `{"kind": "claim_opened", ...its fields}`. A field that a newer version added is ignored, one that an
older version lacks takes its default, an unknown kind becomes `Unknown`.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from functools import cache
from typing import Any

from hpc_resume.errors import JournalError
from hpc_resume.recovery import events as ev


def kind_of(event_class: type) -> str:
    """Return the name of an event class in the journal: `ClaimOpened` is `claim_opened`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", event_class.__name__).lower()


KINDS: dict[str, type] = {kind_of(c): c for c in typing.get_args(ev.Event) if c is not ev.Unknown}


def encode(event: ev.Event) -> dict[str, Any]:
    """Turn an event into a JSON object."""
    if isinstance(event, ev.Unknown):
        return {"kind": event.kind, **event.data}
    return {"kind": kind_of(type(event)), **dataclasses.asdict(event)}


def decode(data: dict[str, Any]) -> ev.Event:
    """Turn a JSON object into an event.

    Raises:
        JournalError: a known kind lacks a field that has no default.
    """
    fields = dict(data)
    kind = str(fields.pop("kind", ""))
    event_class = KINDS.get(kind)
    if event_class is None:
        return ev.Unknown(kind=kind, data=fields)
    try:
        return typing.cast(ev.Event, _build(event_class, fields))
    except (TypeError, ValueError) as error:
        raise JournalError(f"a {kind} record in the journal can't be read: {error}") from error


@cache
def _hints(dataclass_type: type) -> dict[str, Any]:
    return typing.get_type_hints(dataclass_type)


def _build(dataclass_type: type, data: dict[str, Any]) -> object:
    hints = _hints(dataclass_type)
    return dataclass_type(**{name: _value(hints[name], value) for name, value in data.items() if name in hints})


def _value(hint: Any, value: Any) -> Any:
    if value is None:
        return None
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return _value(next(arg for arg in typing.get_args(hint) if arg is not type(None)), value)
    if origin is tuple:
        return tuple(_value(typing.get_args(hint)[0], item) for item in value)
    if dataclasses.is_dataclass(hint) and isinstance(value, dict):
        return _build(typing.cast(type, hint), value)
    return value
