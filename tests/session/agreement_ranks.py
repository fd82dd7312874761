"""Two real ranks that reduce what differs between them; each writes what it was told.

python -m torch.distributed.run ... agreement_ranks.py FOLDER
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from hpc_resume.session.agreement import Agreement

TIMEOUT_S = 77.0


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    agreement = Agreement(TIMEOUT_S)
    rank = agreement.rank

    def reduce(
        loss: Any, norm: Any, scale: Any = None, *, skipped: bool = False, stop: bool = False, written: bool = True
    ) -> dict[str, Any]:
        return dataclasses.asdict(
            agreement.start_reduce(loss, norm, loss_scale=scale, skipped=skipped, stop=stop, written=written).read()
        )

    told: dict[str, Any] = {
        "mean": reduce(torch.tensor(1.0 + rank), 0.5 + rank),
        "plain": reduce(1.0 + rank, None),
        "norm as tensor": reduce(torch.tensor(2.0, requires_grad=True), torch.tensor(0.25)),
        "many bits": reduce(1.1, None),
        "loss scale as number": reduce(1.0, None, 4096.0 / (1 + rank)),
        "loss scale as tensor": reduce(1.0, None, torch.tensor(4096.0 / (1 + rank))),
        "loss scale of 0": reduce(1.0, None, 0.0),
        "stop on one": reduce(1.0, 1.0, stop=rank == 1),
        "skipped": reduce(1.0, float("inf"), skipped=True),
        "skipped on rank 1 only": reduce(1.0, 1.0, skipped=rank == 1),
        "written on one": reduce(1.0, 1.0, written=rank == 1),
        "nan on one": repr(reduce(float("nan") if rank else 1.0, 1.0)["loss"]),
    }
    # The next one is begun before the last one is read, and words go between them.
    first = agreement.start_reduce(1.0 + rank, 1.0, skipped=False, stop=False, written=True)
    word = agreement.from_rank_0(f"from {rank}")
    second = agreement.start_reduce(10.0 + rank, 2.0, skipped=False, stop=False, written=False)
    told["in order"] = [first.read().loss, word, second.read().loss]
    told["timeout_s"] = agreement.group._get_backend(torch.device("cpu")).options._timeout.total_seconds()
    (folder / f"told-{rank}.json").write_text(json.dumps(told))
    dist.destroy_process_group()


main(Path(sys.argv[1]))
