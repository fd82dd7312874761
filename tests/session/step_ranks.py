"""Two real ranks in real sessions, one of them late or sick; each writes what it saw.

python -m torch.distributed.run ... step_ranks.py FOLDER
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from session.by_hand import HandMadeRun, spy_on
from torture.stand_in import StandInEngine

from hpc_resume.monitor import Monitor, Observation
from hpc_resume.session import Session

LIMIT_S = 120.0
SICK_STEP = 5


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    seen = {"steps": watch_steps(folder, rank), "attempts": get_over_an_incident(folder, rank)}
    (folder / f"seen-{rank}.json").write_text(json.dumps(seen))
    dist.destroy_process_group()


def watch_steps(folder: Path, rank: int) -> dict[str, Any]:
    """Let rank 1 begin each step only when rank 0 has come back from its own, and give it a NaN in the end."""
    run = HandMadeRun(folder, "late", steps=1000, interval_steps=1000)
    session = run.start(weights_at_risk=True)
    observations = spy_on(Monitor, "observe")
    session.resume()
    groups = (dist.group.WORLD, session._agreement.group)
    reductions = spy_on(dist, "all_reduce")
    returned: list[bool] = []
    collectives: list[list[int]] = []
    while not returned or returned[-1]:
        step = session.completed_steps + 1
        came_back = folder / f"rank-0-is-back-from-{step}"
        if rank == 1 and step <= SICK_STEP:
            wait_for(came_back)
        before = [group._get_sequence_number_for_group() for group in groups]
        number = float("nan") if rank == 1 and step == SICK_STEP else 2.0 - step / 64 + rank
        loss = torch.tensor(number, requires_grad=True)
        returned.append(session.step(loss, grad_norm=torch.tensor(0.5), loss_scale=2.0**step / (1 + rank)))
        if rank == 0:
            came_back.touch()
        after = [group._get_sequence_number_for_group() for group in groups]
        collectives.append([now - then for now, then in zip(after, before, strict=True)])
    shown: list[Observation] = [arguments[1] for arguments, _ in observations]
    run.ended(session, "decided")
    run.close()
    return {
        "returned": returned,
        # What comes after the incident is about the decision.
        "collectives": collectives[:-1],
        "vectors": [(vector.dtype == torch.float64, vector.numel()) for (vector,), _ in reductions][: len(returned)],
        "asynchronous": all(options["async_op"] for _, options in reductions[: len(returned)]),
        "observed": [(one.step, one.loss, one.grad_norm, one.loss_scale) for one in shown],
        "incidents": [dataclasses.asdict(incident) for incident in session._recorder.history.incidents],
    }


def get_over_an_incident(folder: Path, rank: int) -> list[dict[str, Any]]:
    """Lose the weights once, and let the attempts after that crash before a save, and after one."""
    run = HandMadeRun(folder, "sick", steps=1000, interval_steps=4)
    rewinds = spy_on(Monitor, "rewound")
    attempts = []

    def attempt(until: int, sick: int | None = None) -> None:
        session = run.start(weights_at_risk=True)
        rewinds.clear()
        session.resume()
        attempts.append({"from": session.completed_steps, "rewound": len(rewinds)})
        train(session, run.engine, until, sick if rank == 1 else None)
        run.ended(session, "crash" if session.running else "decided")

    attempt(until=100, sick=9)
    attempt(until=6)
    attempt(until=9)
    attempt(until=10)
    attempt(until=100, sick=11)
    attempt(until=8)
    run.close()
    return attempts


def train(session: Session, engine: StandInEngine, until: int, sick: int | None) -> None:
    going_on = True
    while going_on and session.completed_steps < until:
        engine.step()
        going_on = session.step(float("nan") if session.completed_steps + 1 == sick else 2.0)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"rank 0 is not back: {path.name} is not there after {LIMIT_S:.0f} s")
        time.sleep(0.001)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
