"""The process behind `hpc_resume export`, which itself knows no torch: one checkpoint becomes a transformers folder.

`python -m hpc_resume.worker.export RUN_FOLDER CHECKPOINT OUTPUT [--force]` prints one line of JSON. What is said on
the way, and an error, goes to stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import traceback
import warnings
from dataclasses import asdict
from pathlib import Path

from hpc_resume.config import load_run
from hpc_resume.errors import HpcResumeError
from hpc_resume.journal.folder import RunFolder


def main() -> None:
    """Export, and leave with the exit code that the command line is to have."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("checkpoint")
    parser.add_argument("output", type=Path)
    parser.add_argument("--force", action="store_true")
    arguments = parser.parse_args()
    # Ctrl-C ends the command line as well, and that says so.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    result = _keep_stdout_for_the_result()
    _stay_on_the_cpu()
    try:
        from hpc_resume.trainers.export_checkpoint import export_checkpoint

        folder = RunFolder(arguments.run)
        config = load_run(folder.submission.config, folder.index)
        done = export_checkpoint(
            folder, config, arguments.checkpoint, arguments.output, force=arguments.force, say=_say
        )
    except (HpcResumeError, OSError) as error:
        if os.environ.get("HPC_RESUME_VERBOSE"):
            traceback.print_exc()
        _say(f"error: {' '.join(str(error).split())}")
        raise SystemExit(error.exit_code if isinstance(error, HpcResumeError) else 1) from None
    os.write(result, f"{json.dumps(asdict(done))}\n".encode())


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _keep_stdout_for_the_result() -> int:
    """Let nobody else write to stdout, as DeepSpeed does; return the descriptor of the real one."""
    real = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    return real


def _stay_on_the_cpu() -> None:
    """Leave the GPUs of a node, and the terminal, to others."""
    os.environ |= {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu", "TQDM_DISABLE": "1"}
    warnings.filterwarnings("ignore")  # the versions are what they are; nobody at a terminal can change that


if __name__ == "__main__":
    main()
