"""What a user can set, and how a file becomes a checked, frozen `RunConfig`.

This package starts nothing and changes nothing; it only reads files. `schema` needs nothing heavy, so everybody may
import it; the loader (`load`, `sweep`, `check`) is imported by those who load.
"""

from __future__ import annotations

from pathlib import Path

from hpc_resume.config.schema import RunConfig


def load_run(path: Path, index: int) -> RunConfig:
    """Load a submission's resolved config and return that of one of its runs.

    Raises:
        ConfigError: the file can't be used, or there is no such run.
    """
    from hpc_resume.config.load import load_config
    from hpc_resume.config.sweep import expand
    from hpc_resume.errors import ConfigError

    runs = expand(load_config(path))
    if not 0 <= index < len(runs):
        raise ConfigError(f"{path} describes {len(runs)} runs, 0 to {len(runs) - 1}; there is no run {index}")
    return runs[index]
