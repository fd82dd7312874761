"""One real rank in a real session with losses on a GPU; it writes what it saw.

python -m torch.distributed.run ... step_on_gpu.py FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from session.by_hand import HandMadeRun, spy_on

from hpc_resume.monitor import Monitor, Observation

WARM_UP = 3
"""After so many steps all that is allocated once is there."""
WATCHED = 5
BUSY_CYCLES = 4_000_000_000
"""Seconds, at any clock that a GPU has."""


def main(folder: Path) -> None:
    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    run = HandMadeRun(folder, "gpu", steps=1000, interval_steps=1000)
    session = run.start()
    observations = spy_on(Monitor, "observe")
    session.resume()

    def step(number: int) -> bool:
        # As they come out of a training: in its precision, and the loss with a graph behind it.
        loss = torch.full((), 2.0 - number / 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) * 1.0
        norm = torch.full((1,), 0.5, device="cuda")
        return session.step(loss, grad_norm=norm, loss_scale=torch.full((), 2.0**number, device="cuda"))

    returned = [step(number) for number in range(1, WARM_UP + 1)]
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        control = raises(lambda: torch.ones((), device="cuda").item())
        returned += [step(number) for number in range(WARM_UP + 1, WARM_UP + WATCHED + 1)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    # That mode does not hear of everything. So once more, with work in the stream that takes seconds.
    torch.cuda.synchronize()
    busy = torch.cuda.Event()
    torch.cuda._sleep(BUSY_CYCLES)
    busy.record()
    returned.append(step(WARM_UP + WATCHED + 1))
    still_busy = not busy.query()
    returned.append(step(WARM_UP + WATCHED + 2))
    shown: list[Observation] = [arguments[1] for arguments, _ in observations]
    seen: dict[str, Any] = {
        "returned": returned,
        "a wait is an error": control,
        "still busy": still_busy,
        "observed": [(one.step, one.loss, one.grad_norm, one.loss_scale) for one in shown],
    }
    run.ended(session, "crash")
    run.close()
    (folder / "seen.json").write_text(json.dumps(seen))
    dist.destroy_process_group()


def raises(action: Any) -> bool:
    try:
        action()
    except RuntimeError:
        return True
    return False


if __name__ == "__main__":
    main(Path(sys.argv[1]))
