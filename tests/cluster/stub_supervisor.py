"""A supervisor that only makes its claim and ends as `script.json` says: per run, one word for each start.

A word is an exit code, `killed` (by SIGKILL), `stillborn` (the same before the claim is made) or `waits` (for the
file `go`, or for SIGTERM, on which it ends with 143). What happens is written to `happened`, one line each.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from hpc_resume.cluster.local_allocation import JOB_ID, RESTART_COUNT
from hpc_resume.journal.folder import RunFolder


def main() -> int:
    run = RunFolder(Path(sys.argv[1]) / f"run-{int(sys.argv[2]):04d}")
    home = run.submission.path
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopped.append(number))

    def tell(what: str) -> None:
        with (home / "happened").open("a") as file:
            file.write(f"{what} {run.index}\n")

    claims = len(list(run.journal.glob("claim-*.jsonl")))
    starts = int(os.environ[RESTART_COUNT])
    (home / f"start-{run.index}-{starts}").write_text(f"{os.environ[JOB_ID]} {os.getpid()}")
    words = json.loads((home / "script.json").read_text())[run.index]
    word = words[starts]
    tell("start")
    if word == "stillborn":
        os.kill(os.getpid(), signal.SIGKILL)
    run.claim(claims + 1).touch()
    if word == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if word == "waits":
        while not stopped and not (home / "go").exists():
            time.sleep(0.01)
        word = "143" if stopped else "0"
    tell("end")
    return int(word)


if __name__ == "__main__":
    raise SystemExit(main())
