"""Where the runs go: the `cluster` section of the config."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal

from hpc_resume.config.values import require_positive

_OURS_IN_SBATCH = {
    "array": "the runs of a sweep are the elements; cluster.parallelism limits how many run at a time",
    "nodes": "use cluster.nodes",
    "ntasks": "use cluster.nodes and cluster.ranks_per_node",
    "ntasks-per-node": "use cluster.ranks_per_node",
    "cpus-per-task": "use cluster.cpus_per_rank",
    "time": "use cluster.walltime_min",
    "partition": "use cluster.partition",
    "account": "use cluster.account",
    "job-name": "use name",
    "output": "logs lie in the run's folder",
    "error": "logs lie in the run's folder",
    "open-mode": "logs of earlier attempts are kept",
    "gpus-per-task": "each rank must see all GPUs of its node; use cluster.gpus_per_node",
    "gpu-bind": "each rank must see all GPUs of its node",
    "requeue": "every job is sent with --requeue",
    "no-requeue": "a job that may not be requeued can't go on by itself",
    "signal": "the supervisor has its own clock (supervisor.deadline_margin_s)",
    "wrap": "the supervisor is what the job runs",
    "parsable": "the answer of sbatch is read by this program",
    "wait": "submit does not wait; see status",
    "test-only": "use --dry-run",
    "chdir": "paths are resolved against the config file",
    "export": "the ranks need the environment of submit; set variables in cluster.setup",
}
_OURS_IN_SRUN = {
    "nodes": "use cluster.nodes",
    "ntasks": "use cluster.nodes and cluster.ranks_per_node",
    "ntasks-per-node": "use cluster.ranks_per_node",
    "gpus-per-task": "each rank must see all GPUs of its node; use cluster.gpus_per_node",
    "gpu-bind": "each rank must see all GPUs of its node",
    "nodelist": "the supervisor chooses the nodes",
    "output": "logs lie in the run's folder",
    "kill-on-bad-exit": "a rank that is gone must end the others",
    "job-name": "it names the attempt",
    "export": "the ranks need the environment of submit; set variables in cluster.setup",
}
"""Options that are set here already, or would break what the supervisor relies on; and what to use instead."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterConfig:
    """Where the runs go."""

    kind: Literal["auto", "local", "slurm"] = "auto"
    """`slurm`, `local` (this machine), or `auto`: Slurm where `sbatch` is, else this machine."""

    ranks_per_node: int = 1
    """Training processes on each node; one per GPU."""

    nodes: int | str = 1
    """Nodes of each run; a range, like `2-4`, takes as many of them as are free whenever the job starts."""

    parallelism: int | None = None
    """Runs of a sweep that may run at the same time; null leaves it to Slurm, and means 1 on this machine."""

    walltime_min: int | None = None
    """Time limit of the job; the run saves and requeues before it."""

    partition: str | None = None
    """Slurm partition."""

    account: str | None = None
    """Slurm account."""

    cpus_per_rank: int | None = None
    """Cores of each rank, its DataLoader processes included; null leaves it to Slurm, which gives one."""

    gpus_per_node: int | None = None
    """GPUs of each node, asked for as `--gres=gpu:N`; null is one per rank, 0 none. Other forms go into `sbatch`."""

    sbatch: dict[str, Any] = field(default_factory=dict)
    """Any other `sbatch` options, by their long names: true is a flag, a list is joined with commas."""

    srun: dict[str, Any] = field(default_factory=dict)
    """Options of the `srun` that starts the ranks, by their long names, like those of a container plugin."""

    setup: tuple[str, ...] = ()
    """Lines of shell for the batch script, before the supervisor starts, like `module load cuda`."""

    python: str | None = None
    """Python of the ranks, where it is another one than that of `submit`, as in a container."""

    def __post_init__(self) -> None:
        """Refuse what can't mean anything."""
        require_positive(
            "cluster",
            {
                "ranks_per_node": self.ranks_per_node,
                "nodes": self.min_nodes,
                "parallelism": self.parallelism,
                "walltime_min": self.walltime_min,
                "cpus_per_rank": self.cpus_per_rank,
            },
        )
        if self.gpus_per_node is not None and self.gpus_per_node < 0:
            raise ValueError(f"cluster.gpus_per_node is {self.gpus_per_node}; it must be 0 or more")
        for section, taken in (("sbatch", _OURS_IN_SBATCH), ("srun", _OURS_IN_SRUN)):
            for name in getattr(self, section):
                if (instead := taken.get(name.replace("_", "-"))) is not None:
                    raise ValueError(f"cluster.{section}.{name} can't be set: {instead}")
        if self.max_nodes < self.min_nodes:
            raise ValueError(
                f"cluster.nodes is {self.nodes}; a range goes from the smallest number to the largest, "
                f"{self.max_nodes}-{self.min_nodes}"
            )
        if self.kind == "local" and self.max_nodes != 1:
            raise ValueError(f"cluster.nodes is {self.nodes}; with cluster.kind=local it can only be 1")

    @property
    def min_nodes(self) -> int:
        """The smallest number of nodes that a run may have."""
        return _span(self.nodes)[0]

    @property
    def max_nodes(self) -> int:
        """The largest number of nodes that a run may have."""
        return _span(self.nodes)[1]


def _span(nodes: int | str) -> tuple[int, int]:
    if isinstance(nodes, int):
        return nodes, nodes
    found = re.fullmatch(r"([0-9]{1,5})-([0-9]{1,5})", nodes)
    if found is None:
        raise ValueError(f"cluster.nodes is {nodes!r}; it must be a number of nodes, or a range of them, like 2-4")
    return int(found[1]), int(found[2])
