"""Everything that a user can set, on one page. Units are in the names; `null` means "not set"."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from math import gcd
from typing import Any, Literal

from hpc_resume.config.checkpoint_section import CheckpointConfig
from hpc_resume.config.cluster_section import ClusterConfig
from hpc_resume.config.values import require_positive
from hpc_resume.errors import ConfigError
from hpc_resume.monitor.settings import MonitorSettings
from hpc_resume.recovery.policy import Policy

FaultKind = Literal["spike", "rank_kill", "rank_hang", "nan", "save_fails", "node_lost", "exception", "reload"]


PathMark = Literal["always", "or_name", "contents"]


def path_field(default: Any = None, mark: PathMark = "always") -> Any:
    """Declare a setting that is a path: relative ones are resolved against the config file.

    `or_name` may also be the name of something on the hub; `contents` is replaced by what the JSON file holds.
    """
    return field(default=default, metadata={"path": mark})


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """Which model is trained."""

    name_or_path: str | None = path_field(mark="or_name")
    """A transformers model: a local folder or a hub name; its `config.json` gives the shape."""

    config: dict[str, Any] = field(default_factory=dict)
    """Values of a transformers config (with `model_type`), instead of or on top of `name_or_path`."""

    weights: Literal["pretrained", "random"] = "random"
    """`pretrained` loads the weights of `name_or_path`; `random` starts from new ones."""

    tokenizer: str = path_field("bytes", mark="or_name")
    """`bytes` (one token a byte, nothing to download), a folder with a tokenizer, or a hub name."""

    def __post_init__(self) -> None:
        """Refuse combinations that name no model."""
        if self.name_or_path is None and "model_type" not in self.config:
            raise ValueError("model needs name_or_path, or config with a model_type; found neither")
        if self.weights == "pretrained" and self.name_or_path is None:
            raise ValueError("model.weights is pretrained, but model.name_or_path, to load them from, is not set")


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """What it is trained on."""

    paths: tuple[str, ...] = path_field(())
    """Files, folders or patterns; `${python_stdlib:}` is the folder of Python's own sources."""

    format: Literal["auto", "text", "jsonl", "datasets"] = "auto"
    """`text`, `jsonl`, `datasets` (a folder saved by that library), or `auto`: by the file's ending."""

    text_field: str = "text"
    """Which field of a JSONL line or a dataset row holds the text."""

    sequence_tokens: int = 512
    """Length of a sample; texts are joined and cut into samples of this many tokens before they are ordered."""

    max_samples: int | None = None
    """Use only the first samples; null uses all."""

    loader_workers: int = 0
    """DataLoader processes of each rank."""

    record_samples: bool = False
    """Write down which samples every step of every rank was trained on, for audits."""

    def __post_init__(self) -> None:
        """Refuse what can't mean anything."""
        require_positive("data", {"sequence_tokens": self.sequence_tokens, "max_samples": self.max_samples})
        if self.loader_workers < 0:
            raise ValueError(f"data.loader_workers is {self.loader_workers}; it must be 0 or more")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingConfig:
    """How it is trained."""

    trainer: Literal["causal_lm"] = "causal_lm"
    """Which training loop."""

    steps: int = 1000
    """Optimizer steps of the whole run."""

    micro_batch_size: int = 1
    """Samples that one rank takes through the model at a time."""

    gradient_accumulation_steps: int = 1
    """Micro batches of each rank in one optimizer step; on fewer nodes of a range it is as many more as keep the
    global batch."""

    learning_rate: float = 3e-4
    """Peak learning rate."""

    warmup_steps: int = 0
    """Steps over which the learning rate rises from 0 to its peak."""

    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    """How the learning rate goes on after the warm-up."""

    min_learning_rate: float = 0.0
    """Where `linear` and `cosine` end."""

    weight_decay: float = 0.0
    """AdamW's weight decay."""

    adam_betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's betas."""

    max_grad_norm: float = 1.0
    """Gradients are clipped to this norm; 0 does not clip."""

    precision: Literal["fp32", "bf16"] = "bf16"
    """Number format of weights and activations; the optimizer keeps fp32."""

    gradient_checkpointing: bool = False
    """Compute activations twice instead of keeping them."""

    record_state: bool = False
    """Write down digests of weights, optimizer state and random generators after every step, for audits; slow."""

    deepspeed: dict[str, Any] | None = field(default=None, metadata={"path": "contents"})
    """DeepSpeed's own settings, with `auto` values: the path of a JSON file, or its contents; null is ZeRO 0."""

    def __post_init__(self) -> None:
        """Refuse what can't mean anything."""
        require_positive(
            "training",
            {
                "steps": self.steps,
                "micro_batch_size": self.micro_batch_size,
                "gradient_accumulation_steps": self.gradient_accumulation_steps,
                "learning_rate": self.learning_rate,
            },
        )
        if not 0 <= self.warmup_steps <= self.steps:
            raise ValueError(
                f"training.warmup_steps is {self.warmup_steps}; it must be from 0 to training.steps ({self.steps})"
            )
        for name in ("max_grad_norm", "min_learning_rate", "weight_decay"):
            if getattr(self, name) < 0:
                raise ValueError(f"training.{name} is {getattr(self, name)}; it must be 0 or more")
        if self.min_learning_rate > self.learning_rate:
            raise ValueError(
                f"training.min_learning_rate is {self.min_learning_rate}; "
                f"it must not exceed training.learning_rate ({self.learning_rate})"
            )
        if not all(0 <= beta < 1 for beta in self.adam_betas):
            raise ValueError(f"training.adam_betas is {list(self.adam_betas)}; each must be at least 0 and below 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class SupervisorConfig:
    """How the workers are watched."""

    hang_min_s: float = 180.0
    """Silence shorter than this is never a hang."""

    hang_step_factor: float = 20.0
    """Silence longer than this many usual steps is a hang."""

    phase_limit_s: float = 1800.0
    """Longest silence while loading, saving, or at the first step."""

    stop_grace_s: float = 60.0
    """How long workers may take to save and leave when they are asked to stop."""

    deadline_margin_s: float = 120.0
    """How long before the end of the job's time the run saves and requeues."""

    heartbeat_s: float = 2.0
    """How often metrics are synced to disk; their growth is the heartbeat."""

    def __post_init__(self) -> None:
        """Refuse what can't mean anything."""
        require_positive("supervisor", {name: getattr(self, name) for name in self.__slots__})


@dataclass(frozen=True, kw_only=True, slots=True)
class FaultConfig:
    """One injected fault, for tests and drills."""

    kind: FaultKind = "spike"
    """What goes wrong; `node_lost` only on this machine, as it would end a Slurm job for good. `reload` only loads the
    newest checkpoint in the running processes."""

    step: int = 1
    """At which optimizer step."""

    times: int = 1
    """How often, over all attempts of the run."""

    rank: int = 0
    """Which rank, for `rank_kill`, `rank_hang`, `nan` and `exception`."""

    lr_factor: float = 100.0
    """`spike`: the learning rate is multiplied by this."""

    duration_steps: int = 3
    """`spike`: for so many steps."""

    def __post_init__(self) -> None:
        """Refuse what can't mean anything."""
        require_positive(
            "faults",
            {
                "step": self.step,
                "times": self.times,
                "lr_factor": self.lr_factor,
                "duration_steps": self.duration_steps,
            },
        )
        if self.rank < 0:
            raise ValueError(f"faults.rank is {self.rank}; it must be 0 or more")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """One training, or a sweep of trainings."""

    name: str = ""
    """Name of the folder that everything about these runs is in; if not set, the config file's name."""

    runs_dir: str = path_field("runs")
    """Where that folder lies; all nodes must see it."""

    seed: int = 0
    """Seed of the first weights, of dropout, and of the order of the data."""

    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    """Where the runs go."""

    model: ModelConfig = field(default_factory=lambda: ModelConfig(config={"model_type": "llama"}))
    """Which model is trained."""

    data: DataConfig = field(default_factory=DataConfig)
    """What it is trained on."""

    training: TrainingConfig = field(default_factory=TrainingConfig)
    """How it is trained."""

    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)
    """When state is saved."""

    monitor: MonitorSettings = field(default_factory=MonitorSettings)
    """When the loss is no longer healthy."""

    recovery: Policy = field(default_factory=Policy)
    """What to do when something goes wrong."""

    supervisor: SupervisorConfig = field(default_factory=SupervisorConfig)
    """How the workers are watched."""

    faults: tuple[FaultConfig, ...] = ()
    """Injected faults, for tests and drills."""

    sweep: dict[str, Any] = field(default_factory=dict)
    """Settings with a list of values each; every combination becomes one run of the array."""

    def __post_init__(self) -> None:
        """Refuse a name that is no folder's name, and faults of ranks that don't exist."""
        if self.name and not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", self.name):
            raise ValueError(
                f"name is {self.name!r}; it must be one folder name of letters, digits, '.', '_' and '-', "
                "and not start with '.' or '-'"
            )
        if any(sign in self.runs_dir for sign in "*?["):
            raise ValueError(f"runs_dir is {self.runs_dir}; DeepSpeed takes *, ? and [ in a path for patterns")
        if (
            self.cluster.walltime_min is not None
            and self.cluster.walltime_min * 60 <= self.supervisor.deadline_margin_s
        ):
            raise ValueError(
                f"supervisor.deadline_margin_s is {self.supervisor.deadline_margin_s}; it must be less than the job's "
                f"time, cluster.walltime_min ({self.cluster.walltime_min}), or every job would leave at its start"
            )
        # Of a sweep the elements are what counts, and each of them comes by here.
        smallest = self.cluster.min_nodes
        if not self.sweep and smallest not in self.fitting_nodes:
            raise ValueError(
                f"cluster.nodes is {self.cluster.nodes}, but on {smallest} nodes no gradient accumulation gives the "
                f"global batch of {self.global_batch_size} samples: begin the range with a number that fits "
                f"({_listed(self.fitting_nodes)}), or make training.gradient_accumulation_steps, "
                f"{self.training.gradient_accumulation_steps}, a multiple of "
                f"{smallest // gcd(smallest, self.cluster.max_nodes)}"
            )
        ranks = smallest * self.cluster.ranks_per_node
        for index, fault in enumerate(self.faults):
            if fault.rank >= ranks:
                raise ValueError(
                    f"faults[{index}].rank is {fault.rank}; ranks go from 0 to {ranks - 1} "
                    f"(cluster.nodes x cluster.ranks_per_node)"
                )
            if fault.step > self.training.steps:
                raise ValueError(
                    f"faults[{index}].step is {fault.step}, which is never reached: training.steps is "
                    f"{self.training.steps}"
                )

    @property
    def world_size(self) -> int:
        """Ranks of each run; of a range of nodes, on the largest number."""
        return self.cluster.max_nodes * self.cluster.ranks_per_node

    @property
    def global_batch_size(self) -> int:
        """Samples of one optimizer step, over all ranks; the same on any number of nodes."""
        return self.world_size * self.training.micro_batch_size * self.training.gradient_accumulation_steps

    @property
    def fitting_nodes(self) -> tuple[int, ...]:
        """The numbers of nodes in `cluster.nodes` on which the global batch can be kept, smallest first."""
        shares = self.cluster.max_nodes * self.training.gradient_accumulation_steps
        return tuple(n for n in range(self.cluster.min_nodes, self.cluster.max_nodes + 1) if shares % n == 0)

    def at_nodes(self, nodes: int) -> RunConfig:
        """Return this config for one number of nodes, with the gradient accumulation that keeps the global batch.

        Raises:
            ConfigError: there is none, or `cluster.nodes` does not allow that number.
        """
        if nodes not in self.fitting_nodes:
            raise ConfigError(
                f"can't train on {nodes} node(s): cluster.nodes is {self.cluster.nodes}, and a global batch of "
                f"{self.global_batch_size} samples fits on {_listed(self.fitting_nodes)}"
            )
        steps = self.cluster.max_nodes * self.training.gradient_accumulation_steps // nodes
        return replace(
            self,
            cluster=replace(self.cluster, nodes=nodes),
            training=replace(self.training, gradient_accumulation_steps=steps),
        )

    def at_most(self, nodes: int) -> RunConfig:
        """Return this config for the largest number of nodes that fits and is not above `nodes`.

        Raises:
            ConfigError: there is none.
        """
        return self.at_nodes(max((n for n in self.fitting_nodes if n <= nodes), default=nodes))


def _listed(numbers: tuple[int, ...]) -> str:
    *most, last = map(str, numbers)
    return f"{', '.join(most)} or {last}" if most else last
