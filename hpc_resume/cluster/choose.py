"""Which kind of cluster a config means here."""

from __future__ import annotations

import shutil

from hpc_resume.cluster.base import Cluster
from hpc_resume.cluster.local import LocalCluster
from hpc_resume.config.schema import RunConfig
from hpc_resume.errors import ConfigError


def has_sbatch() -> bool:
    """Tell whether jobs can be sent to Slurm from here."""
    return shutil.which("sbatch") is not None


def wanted_kind(config: RunConfig) -> str:
    """Return `local` or `slurm`; `auto` is Slurm where `sbatch` is."""
    if config.cluster.kind == "auto":
        return "slurm" if has_sbatch() else "local"
    return config.cluster.kind


def cluster_kind(config: RunConfig) -> str:
    """Return the kind of cluster that a config means, if it is there.

    Raises:
        ConfigError: Slurm is asked for, and there is no `sbatch`.
    """
    if config.cluster.kind == "slurm" and not has_sbatch():
        raise ConfigError(
            "cluster.kind is slurm, but there is no `sbatch` on PATH; "
            "submit from a login node, or use cluster.kind=local to train on this machine"
        )
    return wanted_kind(config)


def make_cluster(kind: str) -> Cluster:
    """Return the cluster of a kind.

    Raises:
        ConfigError: this version can't submit there.
    """
    if kind == "local":
        return LocalCluster()
    raise ConfigError(
        "this version submits to this machine only; use cluster.kind=local, "
        "or wait for the version that submits to Slurm"
    )
