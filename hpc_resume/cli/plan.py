"""What `submit --dry-run` prints: the runs that there would be, and what is broken in them on purpose."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from hpc_resume.cli.output import in_words, place, say, write_json, write_table
from hpc_resume.config.deepspeed_json import resolve_deepspeed
from hpc_resume.config.schema import FaultConfig, RunConfig
from hpc_resume.config.sweep import describe, expand
from hpc_resume.journal.folder import SubmissionFolder

_OF_A_RANK = ("rank_kill", "rank_hang", "nan", "exception")


def show_plan(config: RunConfig, kind: str, *, can_send: bool, as_json: bool) -> None:
    """Print what `submit` would do; `can_send` says whether that kind of cluster is there."""
    runs = expand(config)
    folder = Path(config.runs_dir) / config.name
    if as_json:
        plan = [_as_json(config, index, run) for index, run in enumerate(runs)]
        script = {"script": _script(config)} if kind == "slurm" else {}
        write_json({"folder": str(folder), "exists": folder.exists(), "cluster": kind, "runs": plan, **script})
        return
    say(f"would create {folder} and send {len(runs)} run(s) to {place(kind)}; nothing was created")
    if not can_send:
        say("there is no sbatch here: submit from a login node")
    if folder.exists():
        say("but that folder exists already, so `submit` would refuse: choose another name (name=...), or delete it")
    head = ("run", "steps", "samples a step", "tokens a step", "ranks", "precision", "ZeRO", "settings of its own")
    write_table(head, [_row(config, index, run) for index, run in enumerate(runs)])
    for line in [*_sizes(runs), *_faults(runs)]:
        say(line)
    if kind == "slurm":
        say("the batch script:")
        sys.stdout.write(_script(config))


def _script(config: RunConfig) -> str:
    from hpc_resume.cluster.slurm import SlurmCluster

    folder = SubmissionFolder(Path(config.runs_dir) / config.name)
    return SlurmCluster().script(folder, list(range(len(expand(config)))), config)


def _as_json(config: RunConfig, index: int, run: RunConfig) -> dict[str, object]:
    return {
        "run": index,
        "changes": describe(config, index),
        "steps": run.training.steps,
        "global_batch_size": run.global_batch_size,
        "tokens_per_step": _tokens(run),
        "ranks": run.world_size,
        "sizes": _sizes_of(run),
        "precision": run.training.precision,
        "zero_stage": _zero_stage(run),
        "faults": [asdict(fault) for fault in run.faults],
    }


def _row(config: RunConfig, index: int, run: RunConfig) -> tuple[str, ...]:
    numbers = (index, run.training.steps, run.global_batch_size, _tokens(run), run.world_size)
    own = in_words(describe(config, index))
    return (*map(str, numbers), run.training.precision, str(_zero_stage(run)), own)


def _tokens(run: RunConfig) -> int:
    return run.global_batch_size * run.data.sequence_tokens


def _zero_stage(run: RunConfig) -> int:
    stage: int = resolve_deepspeed(run.training.deepspeed, run)["zero_optimization"]["stage"]
    return stage


def _sizes_of(run: RunConfig) -> list[dict[str, int]]:
    """Return what a run becomes on each number of nodes that keeps its global batch."""
    return [
        {
            "nodes": nodes,
            "ranks": (there := run.at_nodes(nodes)).world_size,
            "gradient_accumulation_steps": there.training.gradient_accumulation_steps,
        }
        for nodes in run.fitting_nodes
    ]


def _sizes(runs: Sequence[RunConfig]) -> list[str]:
    """Say that of a range of nodes; name the run as well, where not all runs are alike."""
    cluster = runs[0].cluster
    if cluster.min_nodes == cluster.max_nodes:
        return []
    lines = [f"each run takes the largest of these that is free when its job starts ({cluster.nodes} nodes):"]
    alike = all(_sizes_of(run) == _sizes_of(runs[0]) for run in runs)
    for index, run in enumerate(runs[:1] if alike else runs):
        for size in _sizes_of(run):
            rest = f"{size['ranks']} rank(s), gradient_accumulation_steps={size['gradient_accumulation_steps']}"
            lines.append(f"  {'' if alike else f'run {index} '}on {size['nodes']} node(s): {rest}")
    return lines


def _faults(runs: Sequence[RunConfig]) -> list[str]:
    """Name every injected fault; the run as well, where not all runs have the same."""
    if all(run.faults == runs[0].faults for run in runs):
        return [f"injected fault: {_fault(fault)}" for fault in runs[0].faults]
    return [f"injected fault in run {i}: {_fault(fault)}" for i, run in enumerate(runs) for fault in run.faults]


def _fault(fault: FaultConfig) -> str:
    text = f"{fault.kind} at step {fault.step}"
    if fault.kind in _OF_A_RANK:
        text += f" in rank {fault.rank}"
    if fault.kind == "spike":
        text += f", learning rate x {fault.lr_factor:g} for {fault.duration_steps} step(s)"
    return f"{text}, up to {fault.times} times" if fault.times > 1 else text
