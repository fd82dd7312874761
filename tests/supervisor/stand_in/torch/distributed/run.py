"""As much of torchrun as a supervisor can see: starts the ranks, and ends all of them when one fails."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

GRACE_S = 1.0
WORKER = Path(__file__).parents[3] / "scripted_worker.py"


def end(ranks: list[subprocess.Popen[bytes]]) -> None:
    """Ask first, then kill; those who lost a peer get to say so."""
    deadline = time.monotonic() + GRACE_S
    for rank in ranks:
        if rank.poll() is None:
            rank.send_signal(signal.SIGTERM)
    for rank in ranks:
        try:
            rank.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.kill()
            rank.wait()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--standalone", action="store_true")
    parser.add_argument("--nproc-per-node", type=int, required=True)
    parser.add_argument("--max-restarts", type=int, required=True)
    parser.add_argument("--module", action="store_true")
    parser.add_argument("rest", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    ranks = [
        subprocess.Popen(
            [sys.executable, str(WORKER), *options.rest[1:]],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(options.nproc_per_node)},
            # As torchrun does: only the kernel ties a rank to its launcher.
            start_new_session=True,
        )
        for rank in range(options.nproc_per_node)
    ]
    while True:
        codes = [rank.poll() for rank in ranks]
        if all(code == 0 for code in codes):
            return 0
        if any(codes):
            end(ranks)
            return 1
        time.sleep(0.01)


if __name__ == "__main__":
    raise SystemExit(main())
