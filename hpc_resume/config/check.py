"""What can be known about a run before it waits in a queue, without torch and without reading the data."""

from __future__ import annotations

from pathlib import Path

from hpc_resume.config.data_files import check_data_suffices, find_data_files
from hpc_resume.config.deepspeed_json import resolve_deepspeed
from hpc_resume.config.schema import DataConfig, FaultConfig, ModelConfig, RunConfig
from hpc_resume.config.sweep import describe, expand
from hpc_resume.config.values import show
from hpc_resume.errors import ConfigError


def check_before_submit(config: RunConfig, kind: str) -> None:
    """Check every run of a config: its data, its model's folders, its DeepSpeed settings, its faults.

    `kind` is where they go, `local` or `slurm`.

    Raises:
        ConfigError: in one line, for the first thing that would make a run fail at its start; of a sweep it names
            the run.

    """
    data_seen: set[tuple[DataConfig, int]] = set()
    for index, run in enumerate(expand(config)):
        try:
            _check_model(run.model)
            _check_faults(run.faults, kind)
            _check_deepspeed(run)
            if (run.data, run.global_batch_size) not in data_seen:
                check_data_suffices(find_data_files(run.data), run.data, run.global_batch_size)
            data_seen.add((run.data, run.global_batch_size))
        except ConfigError as error:
            swept = ", ".join(f"{key}={show(value)}" for key, value in describe(config, index).items())
            raise ConfigError(f"{error} (in the run of the sweep with {swept})" if swept else str(error)) from error


def _check_deepspeed(run: RunConfig) -> None:
    """Check the settings for every number of nodes: the gradient accumulation is another one on each."""
    for nodes in run.fitting_nodes:
        try:
            resolve_deepspeed(run.training.deepspeed, run.at_nodes(nodes))
        except ConfigError as error:
            of_a_range = f" (on {nodes} of {run.cluster.nodes} nodes)" if len(run.fitting_nodes) > 1 else ""
            raise ConfigError(f"{error}{of_a_range}") from error


def _check_faults(faults: tuple[FaultConfig, ...], kind: str) -> None:
    for index, fault in enumerate(faults):
        if kind == "slurm" and fault.kind == "node_lost":
            raise ConfigError(
                f"faults[{index}].kind is node_lost, which kills the supervisor; in Slurm that ends the job for good, "
                "so that nothing would go on: use rank_kill there, or cluster.kind=local"
            )


def _check_model(model: ModelConfig) -> None:
    """A path became absolute when it was loaded; what is not absolute is a hub name, and cannot be checked here."""
    if model.name_or_path and Path(model.name_or_path).is_absolute():
        _check_folder("model.name_or_path", Path(model.name_or_path), "config.json")
    if Path(model.tokenizer).is_absolute():
        _check_folder("model.tokenizer", Path(model.tokenizer), None)


def _check_folder(key: str, folder: Path, needed: str | None) -> None:
    if not folder.is_dir():
        found = "is not a folder" if folder.exists() else "does not exist on this machine"
        raise ConfigError(f"{key} is {folder}, which {found}; name the folder of a transformers model, or a hub name")
    if needed and not (folder / needed).is_file():
        raise ConfigError(f"{key} is {folder}, which has no {needed}; name the folder of a transformers model")
