"""What the loss monitor sees on real curves beside other detectors, and what it costs a training step.

    python benchmarks/monitor.py [--corpus PATH] [--split public] [--check-cmd] [--skip-curves] [--skip-cost] [--json]

Curves: a corpus of public loss curves with labelled events brings its own scorer and its own versions of the detectors
that people have today. Both are used as they are, from where the corpus lies; without a corpus this part is left out.
Ours runs with default settings; an alarm is an incident or a near miss, at the point where it was said. A corpus is a
folder with `curves/`, `labels.json`, `manifest.csv` and `score.py`. See `monitor_curves.py`.

Cost: the pure part is `Monitor.observe` alone, on a falling loss with noise and a hard batch now and then, in one
process. The whole part is `session.step` in a training of two ranks with one thread each: reduction, monitor, metrics
and journal. Its time is measured directly, and by blocks of steps of four loops in turn: without it, with it, with
`loss.item()` and an all-reduce instead, and once more without. What other threads do meanwhile shows only in the turns;
the last loop shows how far the machine alone lets equal ones differ. Microseconds are this machine's. A step here is of
64 tokens a rank; longer ones make the share smaller. On a CPU `loss.item()` itself waits for nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from checkpoint import SHAPES, make_engine
from monitor_curves import CORPUS, curves_text, measure_curves

from hpc_resume.monitor import Monitor, MonitorSettings, Observation

RANKS = 2
SETTLED = 2000
"""Points after which every window of the monitor is full."""
BOUNDS = {
    "observe / 20 us": 1.0,
    "saved state / 64 KiB": 1.0,
    "more memory / 64 KiB": 1.0,
    "session.step / step": 0.01,
    "mean session.step / step": 0.01,
}


def main() -> None:
    """Measure what was asked for and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="folder with curves, labels and score.py")
    parser.add_argument("--split", default="public", help="which of its curves")
    parser.add_argument("--max-points", type=int, default=sys.maxsize, help="leave out longer curves")
    parser.add_argument("--check-cmd", action="store_true", help="also score `python -m hpc_resume.monitor`")
    parser.add_argument("--skip-curves", action="store_true", help="measure the cost only")
    parser.add_argument("--skip-cost", action="store_true", help="score curves only")
    parser.add_argument("--points", type=int, default=20_000, help="points of the pure part")
    parser.add_argument("--parameters-m", type=int, choices=SHAPES, default=50, help="millions of parameters")
    parser.add_argument("--rounds", type=int, default=10, help="how often each loop has its turn")
    parser.add_argument("--steps", type=int, default=3, help="steps of a turn")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)  # where the ranks leave what they measured
    options = parser.parse_args()
    options.stage = 2
    if "RANK" in os.environ:
        measure_steps(options)
        return
    found: dict[str, Any] = {"curves": None, "pure": None, "session": None}
    if not options.skip_curves:
        if (options.corpus / "score.py").is_file():
            found["curves"] = measure_curves(options.corpus, options.split, options.max_points, options.check_cmd)
        else:
            sys.stderr.write(f"no corpus in {options.corpus}, so no curves are scored; --corpus says where one is\n")
    if not options.skip_cost:
        found["pure"] = measure_pure(options.points)
        found["session"] = start_ranks()
    text = json.dumps(found, indent=1, allow_nan=False) if options.json else "\n\n".join(tables(found))
    sys.stdout.write(text + "\n")


# The pure part


def noisy_run() -> Iterator[Observation]:
    """Make up a training: a falling loss with 2 % of noise, and a hard batch every 500 steps or so; endless."""
    draw = random.Random(0)
    step = 0
    while True:
        step += 1
        loss = (2.0 + 8.0 / math.sqrt(step)) * (1.0 + draw.gauss(0.0, 0.02)) + (draw.random() < 0.002)
        yield Observation(
            step=step, start_position=step - 1, position=step, loss=loss, grad_norm=math.exp(draw.gauss(0.0, 0.2))
        )


def measure_pure(points: int) -> dict[str, Any]:
    """Measure time and memory of `Monitor.observe`."""
    monitor, run = Monitor(MonitorSettings()), noisy_run()
    for seen in islice(run, SETTLED):
        monitor.observe(seen)
    rounds, singles = [], []
    size = max(1, points // 40)
    for _ in range(20):
        # Half of the points one by one, for the percentiles; half in one go, without the clock's own time.
        for seen in islice(run, size):
            began = time.perf_counter_ns()
            monitor.observe(seen)
            singles.append((time.perf_counter_ns() - began) / 1e3)
        block = list(islice(run, size))
        began = time.perf_counter_ns()
        for seen in block:
            monitor.observe(seen)
        rounds.append((time.perf_counter_ns() - began) / 1e3 / size)
    percentiles = statistics.quantiles(singles, n=100)
    found: dict[str, Any] = {
        "points": points,
        "observe_us": statistics.median(rounds),
        "p50_us": percentiles[49],
        "p99_us": percentiles[98],
        "share_over_20_us": sum(single > 20 for single in singles) / len(singles),
        **measure_memory(points // 2, points * 5),
    }
    found["ratios"] = {
        "observe / 20 us": found["observe_us"] / 20,
        "saved state / 64 KiB": found["state_bytes"] / 2**16,
        "more memory / 64 KiB": found["growth_bytes"] / 2**16,
    }
    return found


def measure_memory(first: int, last: int) -> dict[str, int]:
    """Return what a monitor saves after `last` points, and how many bytes more it holds than after `first`."""
    monitor, run = Monitor(MonitorSettings()), noisy_run()
    tracemalloc.start()
    for seen in islice(run, first):
        monitor.observe(seen)
    before, _ = tracemalloc.get_traced_memory()
    for seen in islice(run, last - first):
        monitor.observe(seen)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    state = json.dumps(monitor.state_dict(), allow_nan=False)
    return {
        "first": first,
        "last": last,
        "held_bytes": before,
        "growth_bytes": after - before,
        "state_bytes": len(state),
    }


# The whole part


def start_ranks() -> Any:
    """Start the ranks and return what they have measured."""
    with tempfile.TemporaryDirectory(prefix="monitor-benchmark-") as folder:
        # sys.argv, so that the ranks get the same options.
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
        log = Path(folder, "log")
        with log.open("wb") as output:
            done = subprocess.run(
                [*command, *sys.argv, "--folder", folder],
                env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
                stdout=output,
                stderr=output,
                check=False,
            )
        if done.returncode:
            sys.exit(log.read_text(errors="replace"))
        return json.loads(Path(folder, "result.json").read_text(encoding="utf-8"))


def measure_steps(options: argparse.Namespace) -> None:
    """Measure as one of the ranks."""
    import torch
    import torch.distributed as dist

    from hpc_resume.trainers.engine import loss_scale, step_health

    engine, _ = make_engine(options)
    session = open_session(options.folder, engine)
    inside: dict[str, list[float]] = {"with it": [], "item": []}

    def train() -> torch.Tensor:
        ids = torch.randint(0, 8192, (1, 64))
        loss: torch.Tensor = engine(input_ids=ids, labels=ids).loss
        engine.backward(loss)
        engine.step()
        return loss.detach()

    def train_with_session() -> None:
        loss = train()
        began = time.perf_counter()
        norm, skipped = step_health(engine)
        goes_on = session.step(loss, grad_norm=norm, loss_scale=loss_scale(engine), skipped=skipped, learning_rate=1e-4)
        inside["with it"].append(time.perf_counter() - began)
        if not goes_on:
            raise RuntimeError(f"the session ended the training: {session._decision}")

    def train_with_item() -> None:
        loss = train()
        began = time.perf_counter()
        total = torch.tensor(loss.item())
        dist.all_reduce(total)
        total.item()
        inside["item"].append(time.perf_counter() - began)

    loss, (norm, _) = train().item(), step_health(engine)
    draw = random.Random(0)
    for _ in range(SETTLED):
        noise = 1 + draw.gauss(0.0, 0.01)
        session.step(torch.tensor(loss * noise), grad_norm=float(norm) * noise)
    loops: dict[str, Callable[[], object]] = {
        "without": train,
        "with it": train_with_session,
        "item": train_with_item,
        "without again": train,
    }
    turns = take_turns(loops, options.rounds, options.steps, dist.barrier)
    everywhere: list[Any] = [None] * RANKS
    dist.all_gather_object(everywhere, inside)
    if dist.get_rank() == 0:
        found = steps_summary(turns, everywhere, sum(parameter.numel() for parameter in engine.module.parameters()))
        found |= {"rounds": options.rounds, "steps": options.steps}
        (options.folder / "result.json").write_text(json.dumps(found, allow_nan=False), encoding="utf-8")
    dist.barrier()
    session.close()
    os._exit(0)


def open_session(folder: Path, engine: Any) -> Any:
    """Open the session of a run that never saves, as a supervisor would have it started."""
    import torch.distributed as dist

    from hpc_resume.config.checkpoint_section import CheckpointConfig
    from hpc_resume.config.cluster_section import ClusterConfig
    from hpc_resume.config.schema import RunConfig, TrainingConfig
    from hpc_resume.journal.folder import RunFolder, make_private
    from hpc_resume.journal.writer import JournalWriter
    from hpc_resume.recovery import Decision
    from hpc_resume.recovery import events as ev
    from hpc_resume.recovery.decisions import Plan
    from hpc_resume.session import Session

    run = RunFolder(folder / "benchmark" / "run-0000")
    if dist.get_rank() == 0:
        make_private(run.journal)
        request = ev.ClaimRequested(
            claim=1, cluster="local", job_id="", restart_count=0, host="", pid=os.getpid(), boot_id="", start_ticks=0
        )
        writer = JournalWriter(run.claim(1), request)
        writer.record(ev.ClaimOpened(claim=1, committed=()))
        plan = Plan(checkpoint=None, step=0, position=0, branch=0)
        writer.record(ev.Decided(decision=Decision(number=1, action="launch", rule="start", reason="", plan=plan)))
        writer.record(ev.AttemptStarted(attempt=1, claim=1, data_seed=0, host=""))
        writer.close()
    dist.barrier()
    config = RunConfig(
        cluster=ClusterConfig(kind="local", ranks_per_node=RANKS),
        training=TrainingConfig(steps=10**9),
        checkpoints=CheckpointConfig(interval_steps=10**9),
    )
    session = Session(
        folder=run,
        attempt=1,
        claim=1,
        config=config,
        engine=engine,
        num_samples=10**6,
        stop_requested=lambda: False,
    )
    session.resume()
    return session


def take_turns(
    loops: dict[str, Callable[[], object]], rounds: int, steps: int, barrier: Callable[[], object]
) -> dict[str, list[float]]:
    """Return seconds a step for each turn of each loop; who comes first changes from round to round."""
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    names = list(loops)
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            loops[name]()  # what the loop before left under way is not this one's
            barrier()
            began = time.perf_counter()
            for _ in range(steps):
                loops[name]()
            seconds[name].append((time.perf_counter() - began) / steps)
    return seconds


def steps_summary(
    turns: dict[str, list[float]], inside: list[dict[str, list[float]]], parameters: int
) -> dict[str, Any]:
    """Return medians and ratios; of the ranks the one that needs more counts."""
    step_s = statistics.median(turns["without"])
    session_s, item_s = (max(statistics.median(rank[name]) for rank in inside) for name in ("with it", "item"))
    mean_s = max(statistics.mean(rank["with it"]) for rank in inside)
    return {
        "parameters": parameters,
        "step_s": step_s,
        "session_us": 1e6 * session_s,
        "session_mean_us": 1e6 * mean_s,
        "item_us": 1e6 * item_s,
        "ratios": {
            "session.step / step": session_s / step_s,
            "mean session.step / step": mean_s / step_s,
            "session.step / item": session_s / item_s,
        },
        "paired": {
            name: spread([mine / bare for mine, bare in zip(turns[name], turns["without"], strict=True)])
            for name in ("with it", "item", "without again")
        },
    }


def spread(values: list[float]) -> list[float]:
    """Return lower quartile, median and upper quartile."""
    return statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3


# Tables


def tables(found: dict[str, Any]) -> Iterator[str]:
    """Return what was measured as text, part by part."""
    if found["curves"]:
        yield curves_text(found["curves"])
    if found["pure"]:
        yield pure_text(found["pure"])
    if found["session"]:
        yield session_text(found["session"])


def pure_text(found: dict[str, Any]) -> str:
    """Return time and memory of the pure part as text."""
    return "\n".join(
        [
            f"Monitor.observe alone, on {found['points']:,} noisy points with all windows full: "
            f"{found['observe_us']:.1f} us a point (median of rounds);",
            f"single points: p50 {found['p50_us']:.1f} us, p99 {found['p99_us']:.1f} us, "
            f"{found['share_over_20_us']:.2%} over 20 us.",
            f"After {found['last']:,} points it saves {found['state_bytes']:,} bytes; it held {found['held_bytes']:,} "
            f"bytes after {found['first']:,}, and {found['growth_bytes']:+,} since.",
            "",
            *bounded(found["ratios"]),
        ]
    )


def session_text(found: dict[str, Any]) -> str:
    """Return the cost of the whole session as text."""
    names = {"with it": "with session.step", "item": "with loss.item() + all-reduce", "without again": "without again"}
    return "\n".join(
        [
            f"{found['parameters']:,} parameters, {RANKS} ranks on CPUs: a step takes {1e3 * found['step_s']:.0f} ms "
            f"without session.step.",
            f"Inside session.step: {found['session_us']:.0f} us (median; mean {found['session_mean_us']:.0f}), inside "
            f"loss.item() and an all-reduce: {found['item_us']:.0f} us.",
            "",
            *bounded(found["ratios"]),
            "",
            f"Loops in turn, {found['rounds']} rounds of {found['steps']} steps, as a multiple of the loop without: "
            "quartiles. The last row is noise alone.",
            "",
            *(
                f"{names[name]:32}{low:8.3f}{middle:8.3f}{high:8.3f}"
                for name, (low, middle, high) in found["paired"].items()
            ),
        ]
    )


def bounded(ratios: dict[str, float]) -> Iterator[str]:
    """Return a line for each ratio, with its bound."""
    for name, ratio in ratios.items():
        bound = BOUNDS.get(name)
        told = "" if bound is None else f"   bound {bound:.2f}{'' if ratio <= bound else '   MISSED'}"
        yield f"{name:26}{ratio:8.4f}{told}"


if __name__ == "__main__":
    main()
