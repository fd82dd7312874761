"""One config with a `sweep` becomes the configs of the runs of one job array."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from hpc_resume.config.build import build, to_values
from hpc_resume.config.fields import Setting, locate, set_value
from hpc_resume.config.schema import RunConfig
from hpc_resume.config.values import Mistake, show
from hpc_resume.errors import ConfigError

FIXED = ("name", "runs_dir", "cluster", "sweep")
"""What all runs of one array share, as they share a folder and a Slurm job."""


def expand(config: RunConfig) -> tuple[RunConfig, ...]:
    """Return the config of every run: the grid of the swept values, the last key fastest.

    Without a sweep it is the one run that the config describes.

    Raises:
        ConfigError: when a key may not be swept, or a combination of values is refused.

    """
    if not config.sweep:
        return (config,)
    try:
        settings = swept_settings(config.sweep)
    except Mistake as mistake:
        raise ConfigError(mistake.text) from mistake
    return tuple(_element(config, settings, combination) for combination in _grid(config.sweep))


def describe(config: RunConfig, index: int) -> dict[str, Any]:
    """Return the swept values of one run, by their dotted keys; `config` is the one before `expand`."""
    return dict(zip(config.sweep, _grid(config.sweep)[index], strict=True))


def swept_settings(sweep: Mapping[str, Any]) -> list[Setting]:
    """Find the setting behind every key of a sweep.

    Raises:
        Mistake: for a key that is no setting or may not differ between runs, and for values that are no list or
            not all different.

    """
    settings = []
    for name, values in sweep.items():
        key = f"sweep.{name}"
        if str(name).partition(".")[0] in FIXED:
            raise Mistake(key, f"{key} cannot be swept; all runs of a sweep share {', '.join(FIXED)}")
        if isinstance(values, dict):
            inner = next(iter(values), "...")
            raise Mistake(key, f"{key} is a mapping; write the key with dots, such as '{name}.{inner}: [...]'")
        if not isinstance(values, list):
            raise Mistake(key, f"{key} is {show(values)}; it must be a list of values, such as [{show(values)}]")
        if not values:
            raise Mistake(key, f"{key} is an empty list, which leaves no run; give it values or remove it")
        if (twice := _repeated(values)) is not None:
            raise Mistake(key, f"{key} has {show(values[twice])} twice, which gives the same run twice; leave one out")
        try:
            settings.append(locate(str(name)))
        except Mistake as mistake:
            raise Mistake(key, f"sweep: {mistake.text}") from mistake
    return settings


def _repeated(values: list[Any]) -> int | None:
    """Return the place of a value that stands before it as well; true is not 1 here, although Python has it so."""
    for place, value in enumerate(values):
        if any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in values[:place]):
            return place
    return None


def _grid(sweep: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    return list(itertools.product(*sweep.values()))


def _element(config: RunConfig, settings: list[Setting], combination: tuple[Any, ...]) -> RunConfig:
    values = to_values(config)
    values["sweep"] = {}
    try:
        for setting, value in zip(settings, combination, strict=True):
            set_value(values, setting.path, value)
        return build(RunConfig, values)
    except Mistake as mistake:
        pairs = zip(settings, combination, strict=True)
        chosen = ", ".join(f"{setting.key}={show(value)}" for setting, value in pairs)
        raise ConfigError(f"sweep, run with {chosen}: {mistake.text}") from mistake
