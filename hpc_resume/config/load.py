"""One YAML file and the overrides of the command line become one checked RunConfig."""

from __future__ import annotations

import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_origin

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hpc_resume.config.build import build, to_values
from hpc_resume.config.deepspeed_json import read_deepspeed_json
from hpc_resume.config.fields import element_section, hints, is_section, path_marks
from hpc_resume.config.schema import PathMark, RunConfig
from hpc_resume.config.source import Source, first_line, read_source
from hpc_resume.config.sweep import expand, swept_settings
from hpc_resume.config.values import Mistake, show
from hpc_resume.errors import ConfigError

OmegaConf.register_resolver("python_stdlib", lambda: sysconfig.get_path("stdlib"), replace=True)


def load_config(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Load a config: defaults, then the file, then `key=value` overrides.

    Every path in the result is absolute and the DeepSpeed file is read in, so that the result means the same
    wherever and whenever it is used. The elements of a sweep are checked too.

    Raises:
        ConfigError: in one line, with the place, for the first thing that cannot be used.

    """
    source = read_source(path, overrides)
    try:
        _refuse_ignored(source)
        config = _checked(source)
    except Mistake as mistake:
        raise source.error(mistake) from mistake
    try:
        expand(config)
    except ConfigError as error:
        raise ConfigError(f"{source.place('sweep')}: {error}") from error
    return config


def dump_config(config: RunConfig) -> str:
    """Return a config as YAML that `load_config` turns into an equal one."""
    return OmegaConf.to_yaml(OmegaConf.create(_escaped(to_values(config))))


def _checked(source: Source) -> RunConfig:
    values = {"name": source.path.stem, "runs_dir": RunConfig().runs_dir} | source.values
    values = _interpolated(values)
    _settle_paths(RunConfig, values, source)
    _settle_sweep(values.get("sweep"), source)
    config = build(RunConfig, values)
    if not config.name:
        raise Mistake("name", "name is empty; give one, or leave it out to use the file's name")
    return config


def _escaped(value: Any) -> Any:
    """Keep text that looks like an interpolation from being one when it is read back."""
    if isinstance(value, dict):
        return {name: _escaped(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_escaped(inner) for inner in value]
    return value.replace("${", "\\${") if isinstance(value, str) else value


def _interpolated(values: dict[str, Any]) -> dict[str, Any]:
    """Resolve `${...}`, which may also name settings that were left at their defaults."""
    try:
        everything = OmegaConf.create(_overlaid(to_values(RunConfig()), values))
        resolved: dict[str, Any] = _only(values, OmegaConf.to_container(everything, resolve=True))
    except OmegaConfBaseException as error:
        key = error.full_key or ""
        raise Mistake(key, f"{key or 'a value'} cannot be resolved: {first_line(error)}") from error
    return resolved


def _overlaid(below: Any, above: Any) -> Any:
    if isinstance(below, dict) and isinstance(above, dict):
        return below | {key: _overlaid(below.get(key), inner) for key, inner in above.items()}
    return above


def _only(wanted: Any, found: Any) -> Any:
    """Reduce `found` to the keys that `wanted` has, so that defaults do not pass for what the user wrote."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        return {key: _only(inner, found[key]) for key, inner in wanted.items()}
    return found


def _settle_paths(owner: type[Any], values: Any, source: Source, prefix: str = "") -> None:
    """Make every path in these values absolute, in place; what has a wrong type is left for `build` to refuse."""
    if not isinstance(values, dict):
        return
    for name, hint in hints(owner).items():
        key = prefix + name
        if name not in values:
            continue
        if is_section(hint):
            _settle_paths(hint, values[name], source, f"{key}.")
        elif (element := element_section(hint)) and isinstance(values[name], list):
            for index, each in enumerate(values[name]):
                _settle_paths(element, each, source, f"{key}[{index}].")
        elif (mark := path_marks(owner).get(name)) and isinstance(values[name], list) == (get_origin(hint) is tuple):
            values[name] = _settled(values[name], mark, source, key)


def _settle_sweep(sweep: Any, source: Source) -> None:
    if not isinstance(sweep, dict):
        return
    for setting in swept_settings(sweep):
        if setting.path_mark:
            key = f"sweep.{setting.key}"
            sweep[setting.key] = [_settled(each, setting.path_mark, source, key) for each in sweep[setting.key]]


def _refuse_ignored(source: Source) -> None:
    """Refuse an override that each run's own value of a swept setting would replace."""
    sweep = source.values.get("sweep")
    for name in sweep if isinstance(sweep, dict) else ():
        for key in source.overridden:
            if key == name or key.startswith(f"{name}."):
                by = "on the command line, too" if source.is_overridden(f"sweep.{name}") else "by the file"
                raise Mistake(key, f"{key} is swept {by}; override sweep instead, like 'sweep={{{name}: [...]}}'")


def _settled(value: Any, mark: PathMark, source: Source, key: str) -> Any:
    """Resolve one path, or each of a list: against the current folder if it came from the command line."""
    if isinstance(value, list):
        return [_settled(each, mark, source, key) for each in value]
    if not isinstance(value, str) or value == "???":
        return value
    if not value or "\0" in value:
        raise Mistake(key, f"{key} is {show(value)}, which is no path; name one, or leave the setting out")
    base = Path.cwd() if source.is_overridden(key) else source.path.parent.absolute()
    if mark == "or_name" and not _is_path(value, base):
        return value
    try:
        found = _joined(base, Path(value).expanduser())
    except RuntimeError as error:
        raise Mistake(key, f"{key} is {show(value)}; {first_line(error)}") from error
    if mark != "contents":
        return str(found)
    try:
        return read_deepspeed_json(found)
    except ConfigError as error:
        raise Mistake(key, str(error)) from error


def _is_path(value: str, base: Path) -> bool:
    try:
        if value == "bytes":
            return False
        # Whoever has a folder `models` means by `models/x` one in it, not what the hub has under that name.
        first, slash, _ = value.partition("/")
        return value[0] in ".~/" or (base / value).exists() or (slash != "" and (base / first).is_dir())
    except OSError:  # Too long for a file name, or in a folder that we may not look into: the check says more.
        return False


def _joined(base: Path, path: Path) -> Path:
    """Join without leaving `..` in the result, and without seeing through symlinks that the user can see.

    Real paths of network folders can differ between nodes, so only a folder that `..` steps out of is resolved.
    """
    if path.is_absolute():
        return path
    parts = path.parts
    while parts and parts[0] == "..":
        base = (base.resolve() if base.is_symlink() else base).parent
        parts = parts[1:]
    return base.joinpath(*parts)
