"""Which kind of cluster a config means here."""

from __future__ import annotations

import os
import shutil

from hpc_resume.cluster.base import Allocation, Cluster
from hpc_resume.cluster.local import LocalCluster
from hpc_resume.cluster.local_allocation import LocalAllocation
from hpc_resume.cluster.slurm import SlurmCluster
from hpc_resume.cluster.slurm_allocation import SlurmAllocation, is_in_job
from hpc_resume.config.cluster_section import ClusterConfig
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
        ConfigError: Slurm is asked for, and there is no `sbatch`; or several nodes are.
    """
    if config.cluster.kind == "slurm" and not has_sbatch():
        raise ConfigError(
            "cluster.kind is slurm, but there is no `sbatch` on PATH; "
            "submit from a login node, or use cluster.kind=local to train on this machine"
        )
    kind = wanted_kind(config)
    if kind == "local":
        _refuse_several_nodes(config.cluster)
    return kind


def make_cluster(kind: str) -> Cluster:
    """Return the cluster of a kind, `local` or `slurm`."""
    return SlurmCluster() if kind == "slurm" else LocalCluster()


def kind_here(config: ClusterConfig) -> str:
    """Return the kind of place that this process is in: `slurm` in a Slurm job, unless the config says otherwise."""
    return "slurm" if config.kind != "local" and is_in_job(os.environ) else "local"


def make_allocation(config: ClusterConfig) -> Allocation:
    """Return the place that this process runs in, of the kind that it is in.

    Raises:
        ConfigError: it should be in a Slurm job and is not, or the job or this machine does not fit.
    """
    if kind_here(config) == "slurm":
        return SlurmAllocation(config)
    if config.kind == "slurm":
        raise ConfigError(
            "cluster.kind is slurm, but this is no Slurm job (SLURM_JOB_ID is not set); send it with `submit` or "
            "`sbatch`, or use cluster.kind=local to train on this machine"
        )
    _refuse_several_nodes(config)
    return LocalAllocation()


def _refuse_several_nodes(config: ClusterConfig) -> None:
    if config.min_nodes > 1:
        raise ConfigError(
            f"cluster.nodes is {config.nodes}, but without Slurm there is this machine only: submit from a login node, "
            "or set cluster.nodes=1"
        )
