"""The process in which DeepSpeed's converter runs: `python -m hpc_resume.checkpoints.conversion`.

Arguments: the checkpoint, the folder to make, processes that take apart, processes that join. It ends, with all
processes of its own, when its standard input does: that is when whoever started it is gone.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import torch


def main(source: str, target: str, extract: str, merge: str) -> None:
    """Convert one checkpoint."""
    threading.Thread(target=_end_with_input, daemon=True).start()
    from deepspeed.checkpoint import ds_to_universal

    ds_to_universal.main(
        argparse.Namespace(
            input_folder=source,
            output_folder=target,
            num_extract_workers=int(extract),
            num_merge_workers=int(merge),
            keep_temp_folder=False,
            strict=True,
            inject_missing_state=True,  # ZeRO 1 and 2 lack an entry that only Megatron's models fill
        )
    )
    if (temporary := Path(target, "tmp")).exists():
        shutil.rmtree(temporary)  # DeepSpeed does not say when it could not
    slim(Path(target, "zero", "optimizer_state.pt"))


def slim(path: Path) -> None:
    """Take the tensors of rank 0 out of what is common to all ranks, which every rank reads whole.

    With ZeRO 3 DeepSpeed leaves them in; of the whole state, only the step count is read there.
    """
    common = torch.load(path, map_location="cpu", weights_only=False)
    if "fp32_flat_groups" not in common:
        return
    del common["fp32_flat_groups"]
    adam: dict[str, Any] = common["optimizer_state_dict"]
    adam["state"] = {key: {"step": state["step"]} for key, state in adam["state"].items()}
    torch.save(common, path)


def _end_with_input() -> None:
    while os.read(0, 1):
        pass
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)  # its workers with it
    os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
