"""What the user wrote in the file and on the command line, and where each setting stands."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped, unused-ignore]
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hpc_resume.config.fields import Setting, locate, set_value
from hpc_resume.config.values import Mistake, without_null
from hpc_resume.errors import ConfigError

COMMAND_LINE = "on the command line"


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """The settings of one file with the overrides on top, not yet checked."""

    path: Path
    values: dict[str, Any]
    lines: Mapping[str, int]
    """Line of every dotted key of the file, from 1."""

    overridden: frozenset[str]
    """Dotted keys that were given on the command line."""

    def error(self, mistake: Mistake) -> ConfigError:
        """Turn a mistake into one line that says where to look."""
        text = " ".join(mistake.text.split())
        named = re.findall(r"[a-z_]+(?:\[\d+\])?(?:\.[a-z_]+)+", text)
        return ConfigError(f"{self.place(mistake.key, *named)}: {text}")

    def place(self, *keys: str) -> str:
        """Return where the first of these keys that the user wrote stands, or else the section around it."""
        around = [outer for key in keys for outer in _around(key)]
        for key in (*keys, *around):
            if key in self.overridden:
                return COMMAND_LINE
            if key in self.lines:
                return f"{self.path}:{self.lines[key]}"
        return str(self.path)

    def is_overridden(self, key: str) -> bool:
        """Tell whether a setting, or a mapping around it, was given on the command line."""
        return key in self.overridden or any(outer in self.overridden for outer in _around(key))


def read_source(path: Path, overrides: Sequence[str]) -> Source:
    """Read a config file and lay `key=value` overrides over it.

    Raises:
        ConfigError: when the file cannot be read, is not a YAML mapping, or an override names no setting.

    """
    values, lines = _read_file(path)
    overridden = set()
    for override in overrides:
        try:
            setting, value = _parse_override(override)
            set_value(values, _steps(setting), value)
        except Mistake as mistake:
            raise ConfigError(f"{COMMAND_LINE}: {' '.join(mistake.text.split())}") from mistake
        overridden.add(setting.key)
    return Source(path=path, values=values, lines=lines, overridden=frozenset(overridden))


def first_line(error: Exception) -> str:
    """Return the first line of a library's message; the rest repeats its own types."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _read_file(path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: there is no such file") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not a text file (byte {error.start} is not UTF-8)") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); a YAML file is expected") from error
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is None:
            raise ConfigError(f"{path}: the file is empty; it must hold settings, such as 'training: {{steps: 100}}'")
        if not isinstance(root, yaml.MappingNode):
            raise ConfigError(f"{path}: the file must be a mapping of settings (key: value); found a {root.id}")
        return _plain_yaml(text), dict(_lines(root))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise ConfigError(f"{where}: not valid YAML: {_yaml_problem(error)}") from error
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        key = getattr(error, "full_key", None)
        raise ConfigError(f"{path}: {key or 'a value'} cannot be read: {first_line(error)}") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: not usable: an anchor (&) holds itself, or the nesting is too deep") from error


def _plain_yaml(text: str) -> dict[str, Any]:
    """Parse by OmegaConf's rules: duplicate keys are refused, and 1e-4 is a number."""
    values = OmegaConf.to_container(OmegaConf.create(text))
    assert isinstance(values, dict)  # The caller has seen that the root is a mapping
    return {str(key): value for key, value in values.items()}


def _yaml_problem(error: Any) -> str:
    return " ".join(part for part in (error.problem, error.context and f"({error.context})") if part)


def _lines(node: Any, key: str = "") -> Iterator[tuple[str, int]]:
    if isinstance(node, yaml.MappingNode):
        for name, inner in node.value:
            at = f"{key}.{name.value}" if key else str(name.value)
            yield at, name.start_mark.line + 1
            yield from _lines(inner, at)
    elif isinstance(node, yaml.SequenceNode):
        for index, inner in enumerate(node.value):
            yield f"{key}[{index}]", inner.start_mark.line + 1
            yield from _lines(inner, f"{key}[{index}]")


def _around(key: str) -> Iterator[str]:
    """Yield the keys of the mappings and lists around a key, innermost first."""
    while match := re.fullmatch(r"(.+)(?:\.[^.\[]+|\[\d+\])", key):
        key = match[1]
        yield key


def _parse_override(text: str) -> tuple[Setting, Any]:
    key, equals, raw = text.partition("=")
    if not equals or not key:
        raise Mistake(key, f"{text!r} is not key=value; write for example training.steps=100")
    setting = locate(key)
    try:
        value = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={raw}"]))["value"]  # type: ignore[index, call-overload, unused-ignore]
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise Mistake(key, f"{key}={raw} cannot be read as YAML: {first_line(error)}") from error
    if without_null(setting.hint) is str and isinstance(value, bool | int | float):
        value = raw  # A shell takes the quotes away, so name=007 must be the text that it looks like.
    return setting, value


def _steps(setting: Setting) -> tuple[str, ...]:
    """Return the keys to walk; in `sweep` what follows is one key that has dots in it."""
    if setting.name == "sweep" and setting.rest:
        return ("sweep", ".".join(setting.rest))
    return setting.path
