"""What each of the runs that share this machine gets of it: its GPUs and its cores."""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path

from hpc_resume.errors import ConfigError

GPUS = "CUDA_VISIBLE_DEVICES"
THREADS = "OMP_NUM_THREADS"

_DRIVER = Path("/proc/driver/nvidia/gpus")
"""NVIDIA's driver keeps a folder for each GPU here."""
_NO_GPU = ("", "-1", "NoDevFiles")


def visible_gpus(environment: Mapping[str, str], driver: Path = _DRIVER) -> list[str]:
    """Return the GPUs that a process with this environment sees, by the names that `CUDA_VISIBLE_DEVICES` takes.

    As in CUDA, the first name that stands for no GPU ends the list.
    """
    if GPUS in environment:
        names = (name.strip() for name in environment[GPUS].split(","))
        return list(takewhile(lambda name: name not in _NO_GPU, names))
    return [str(number) for number in range(len(list(driver.glob("*"))))]


def share_gpus(gpus: list[str], ranks: int, places: int) -> list[str]:
    """Return `CUDA_VISIBLE_DEVICES` for each of `places` runs of `ranks` ranks; empty if there is no GPU at all.

    Raises:
        ConfigError: there are GPUs, but not one for each rank.
    """
    if not gpus:
        return []
    if len(gpus) < ranks * places:
        raise ConfigError(
            f"this machine has {len(gpus)} GPU(s) to train on, but {places} run(s) at a time with {ranks} rank(s) each "
            f"need {ranks * places}; lower cluster.parallelism or cluster.ranks_per_node, "
            f"or train on the CPU: set {GPUS} to nothing"
        )
    return [",".join(gpus[place * ranks : (place + 1) * ranks]) for place in range(places)]


def threads_per_rank(ranks: int, places: int = 1) -> int:
    """Return how many threads a rank may use when `places` runs of `ranks` ranks share the cores of this machine."""
    return max(1, (os.cpu_count() or 1) // (ranks * places))
