"""What a checkpoint costs: a save beside DeepSpeed's own, a load, and its verification; on this machine's CPU.

    python benchmarks/checkpoint.py [--parameters-m 50] [--stage 2] [--rounds 7] [--folder DIR] [--json]

Two ranks of one thread each train a Llama of that many million parameters in bf16. In each round the same state is
saved in every way, one after the other, so that all see the same machine; what is printed are medians over the rounds,
the first one left out. Seconds are this machine's; only the ratios say something about others.

- bare: DeepSpeed's `save_checkpoint`, which leaves the files to the page cache and computes torch's checksums.
- sync: ours with `mode: sync`: every file synced and digested, gathered, committed.
- async: ours with `mode: async`. "Blocked" is what training waits for: the copy, and the commit a few steps later.
- staged: the same with `staging_dir`, on the same disk here.

"With 2 steps" is the time from the beginning of the save to the end of the second step after it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RANKS = 2
BOUNDS = {
    "async blocked / sync": 0.5,
    "async with 2 steps / sync with 2 steps": 1.1,
    "sync / bare": 2.0,
    "verify / load": 0.3,
}
SHAPES = {
    1: {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2, "vocab_size": 8192},  # to try it out
    50: {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 13, "vocab_size": 8192},
    200: {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 14, "vocab_size": 8192},
}


def main() -> None:
    """Start the ranks, and print what rank 0 has measured."""
    parser = argparse.ArgumentParser(description="Measure what checkpoints cost.")
    parser.add_argument("--parameters-m", type=int, choices=SHAPES, default=50, help="millions of parameters")
    parser.add_argument("--stage", type=int, choices=(0, 1, 2, 3), default=2, help="ZeRO stage")
    parser.add_argument("--rounds", type=int, default=7, help="how often each save is measured")
    parser.add_argument("--folder", type=Path, default=Path(), help="where the files go; the disk that is measured")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    if "RANK" in os.environ:
        measure(options)
        return
    with tempfile.TemporaryDirectory(prefix="checkpoint-benchmark-", dir=options.folder) as folder:
        # sys.argv, so that the ranks get the same options; but their folder is this one.
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        log = Path(folder, "log")
        with log.open("wb") as output:
            done = subprocess.run(
                [*command, *sys.argv, "--folder", folder],
                env=environment,
                stdout=output,
                stderr=output,
                check=False,
            )
        if done.returncode:
            sys.exit(log.read_text(errors="replace"))
        found = json.loads(Path(folder, "result.json").read_text())
    sys.stdout.write((json.dumps(found, indent=1) if options.json else table(found)) + "\n")


def table(found: dict[str, Any]) -> str:
    """Return what was measured as text."""
    lines = [
        f"{found['parameters']:,} parameters, ZeRO {found['stage']}, {RANKS} ranks, {found['megabytes']:.0f} MB on "
        f"disk, {found['rounds']} rounds; a step takes {found['step_s']:.2f} s",
        "",
        f"{'':8}{'blocked s':>12}{'in all s':>12}{'with 2 steps s':>16}",
    ]
    for name in ("bare", "sync", "async", "staged"):
        row = found["saves"][name]
        lines.append(f"{name:8}{row['blocked_s']:12.3f}{row['total_s']:12.3f}{row['two_steps_s']:16.3f}")
    lines += ["", f"load {found['load_s']:.3f} s, of which verification {found['verify_s']:.3f} s", ""]
    for name, ratio in found["ratios"].items():
        lines.append(f"{name:42}{ratio:6.2f}   bound {BOUNDS[name]:.2f}{'' if ratio <= BOUNDS[name] else '   MISSED'}")
    lines += [
        "",
        f"host memory of the copy: {found['copy_mb']:.0f} MB a rank; most memory of a rank: {found['peak_mb']:.0f} MB",
    ]
    return "\n".join(lines)


def measure(options: argparse.Namespace) -> None:
    """Measure as one of the ranks."""
    import torch.distributed as dist

    from hpc_resume.checkpoints import catalog
    from hpc_resume.checkpoints.store import CheckpointStore
    from hpc_resume.checkpoints.writing import Staging

    folder = options.folder
    engine, step = make_engine(options)
    group = dist.new_group(backend="gloo")
    plain = CheckpointStore(folder, engine, group)
    rank = dist.get_rank()
    staged = CheckpointStore(folder, engine, group, staging=Staging(str(folder / "stage"), folder, 1, rank))
    kinds: dict[str, Callable[[int], dict[str, float]]] = {
        "bare": lambda number: save_bare(engine, folder, number, step),
        "sync": lambda number: save(plain, engine, number, step, background=False),
        "async": lambda number: save(plain, engine, number, step, background=True),
        "staged": lambda number: save(staged, engine, number, step, background=True),
    }
    steps = [timed(step) for _ in range(3)]
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in kinds}
    loads: list[tuple[float, float]] = []
    megabytes = 0.0
    for number in range(1, options.rounds + 2):
        for name, measured in kinds.items():
            dist.barrier()
            rows[name].append(measured(number))
            steps.append(timed(step))
            dist.barrier()
            saved = newest(folder)
            if name == "async":
                manifest = catalog.read_manifest(folder, saved.name)
                megabytes = sum(entry.size for entry in manifest.files.values()) / 1e6
                verify_s = timed(lambda: catalog.find_damage(folder, manifest, rank))  # noqa: B023 (called at once)
                dist.barrier()
                loads.append((verify_s, timed(lambda: plain.load(manifest))))  # noqa: B023
            dist.barrier()
            if rank == 0:
                shutil.rmtree(saved)
                os.sync()  # what one save left to the page cache must not slow the next one
    if rank == 0:
        (folder / "result.json").write_text(
            json.dumps(summary(options, rows, loads, steps, megabytes, plain), indent=1), encoding="utf-8"
        )
    dist.barrier()
    os._exit(0)


def summary(
    options: argparse.Namespace,
    rows: dict[str, list[dict[str, float]]],
    loads: list[tuple[float, float]],
    steps: list[float],
    megabytes: float,
    store: Any,
) -> dict[str, Any]:
    """Return medians without the first round, and the ratios that are bounded."""
    saves = {
        name: {what: statistics.median(row[what] for row in found[1:]) for what in found[0]}
        for name, found in rows.items()
    }
    verify_s = statistics.median(verify for verify, _ in loads[1:])
    load_s = statistics.median(load for _, load in loads[1:])
    return {
        "parameters": store.describe()["parameters"],
        "stage": options.stage,
        "rounds": options.rounds,
        "megabytes": megabytes,
        "step_s": statistics.median(steps),
        "saves": saves,
        "verify_s": verify_s,
        "load_s": load_s,
        "ratios": {
            "async blocked / sync": saves["async"]["blocked_s"] / saves["sync"]["total_s"],
            "async with 2 steps / sync with 2 steps": saves["async"]["two_steps_s"] / saves["sync"]["two_steps_s"],
            "sync / bare": saves["sync"]["total_s"] / saves["bare"]["total_s"],
            "verify / load": verify_s / load_s,
        },
        "copy_mb": store._host.held_bytes / 1e6,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }


def make_engine(options: argparse.Namespace) -> tuple[Any, Callable[[], None]]:
    """Return an engine on random weights, and a function that trains one step."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from hpc_resume.config.cluster_section import ClusterConfig
    from hpc_resume.config.deepspeed_json import resolve_deepspeed
    from hpc_resume.config.schema import RunConfig
    from hpc_resume.trainers.engine import build_engine, set_learning_rate

    config = RunConfig(cluster=ClusterConfig(kind="local", ranks_per_node=RANKS))
    shape = AutoConfig.for_model("llama", **SHAPES[options.parameters_m], num_attention_heads=8, use_cache=False)
    values = resolve_deepspeed({"zero_optimization": {"stage": options.stage}}, config)
    torch.manual_seed(0)
    engine = build_engine(config, values, lambda: AutoModelForCausalLM.from_config(shape, dtype=torch.bfloat16))
    set_learning_rate(engine, 1e-4)
    ids = torch.randint(0, 8192, (1, 64))

    def step() -> None:
        engine.backward(engine(input_ids=ids, labels=ids).loss)
        engine.step()

    step()
    return engine, step


def save_bare(engine: Any, folder: Path, number: int, step: Callable[[], None]) -> dict[str, float]:
    """Save as DeepSpeed does by itself."""
    began = time.perf_counter()
    engine.save_checkpoint(str(folder), tag=f"bare-{number}", save_latest=False)
    total = time.perf_counter() - began
    step()
    step()
    return {"blocked_s": total, "total_s": total, "two_steps_s": time.perf_counter() - began}


def save(store: Any, engine: Any, number: int, step: Callable[[], None], *, background: bool) -> dict[str, float]:
    """Save as a session does, with two steps behind it."""
    from hpc_resume.checkpoints import catalog
    from hpc_resume.recovery.events import Checkpoint

    at = int(engine.global_steps)
    name = catalog.checkpoint_name(at, number)
    manifest = catalog.Manifest(
        schema=catalog.SCHEMA,
        checkpoint=Checkpoint(name=name, step=at, position=at, branch=0, save_number=number),
        claim=1,
        attempt=1,
        num_samples=1,
        segments=[],
        versions={},
        **store.describe(),
    )
    began = time.perf_counter()
    pending = store.begin(manifest, {}, background=background)
    blocked = time.perf_counter() - began
    if not background:
        blocked += timed(lambda: store.finish(pending, lambda: None))
        total = time.perf_counter() - began
    step()
    step()
    two_steps = time.perf_counter() - began
    if background:
        pending.wait()
        total = time.perf_counter() - began
        # As in training: by then all ranks know that all of them have written.
        import torch.distributed as dist

        dist.barrier()
        commit = timed(lambda: store.finish(pending, lambda: None))
        blocked, total = blocked + commit, total + commit
    return {"blocked_s": blocked, "total_s": total, "two_steps_s": two_steps}


def newest(folder: Path) -> Path:
    """Return the one checkpoint that is there."""
    return next(path for path in folder.iterdir() if path.name.startswith(("bare-", "step-")))


def timed(action: Callable[[], object]) -> float:
    """Return how many seconds something takes."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
