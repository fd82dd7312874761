"""One rank with engines in fp16, as somebody with a loop of their own may have; it writes the loss scales.

python -m torch.distributed.run ... fp16_rank.py FILE
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import deepspeed.ops
import torch
from deepspeed.accelerator import get_accelerator

from hpc_resume.trainers.engine import close_engine, loss_scale, step_health

STAGES = (0, 1, 2, 3)
OVERFLOWS = (False, True, True, False)


def main(path: Path) -> None:
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    # DeepSpeed refuses to train in fp16 on a CPU because that is slow; what it does then is the same.
    accelerator = type(get_accelerator())
    accelerator.is_fp16_supported = lambda _: True
    accelerator.supported_dtypes = lambda _: [torch.float, torch.half, torch.bfloat16]
    dynamic = {"enabled": True, "loss_scale": 0, "initial_scale_power": 8, "hysteresis": 1}
    seen: dict[str, Any] = {f"dynamic, stage {stage}": train(stage, {"fp16": dynamic}) for stage in STAGES}
    seen["fixed"] = train(1, {"fp16": {"enabled": True, "loss_scale": 128}})
    seen["bf16"] = train(1, {"bf16": {"enabled": True}})
    seen["fp32"] = train(0, {})
    path.write_text(json.dumps(seen))
    close_engine()


def train(stage: int, precision: dict[str, Any]) -> list[tuple[float | None, bool]]:
    """Return after each step the loss scale, and whether the step was skipped."""
    model = torch.nn.Linear(4, 4)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters()),
        config={"train_batch_size": 2, "zero_optimization": {"stage": stage}, **precision},
    )
    seen = []
    for overflows in OVERFLOWS:
        inputs = torch.ones(2, 4, dtype=next(engine.module.parameters()).dtype)
        loss = engine(inputs).float().square().mean() * (float("inf") if overflows else 1.0)
        engine.backward(loss)
        engine.step()
        seen.append((loss_scale(engine), step_health(engine)[1]))
    return seen


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    sys.stdout.flush()
    # As a real rank leaves: the destructors of a process group can still abort what has ended well.
    os._exit(0)
