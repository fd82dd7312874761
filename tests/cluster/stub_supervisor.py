"""A supervisor that only makes its claim and ends as `script.json` says: per run, one word for each start.

A word is an exit code that it decides on (0, 1, 75, 143, with the records for that), one that it ends with before
its claim (2, 3), `killed` (by SIGKILL, in an attempt), `crashes` (exit code 1 in an attempt, no decision), `idle`
(killed before any attempt), `stillborn` (killed before the claim is made) or `waits` (for the file `go`, or for
SIGTERM, on which it ends with 143). What happens is written to `happened`, one line each.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from hpc_resume.cluster.local_allocation import JOB_ID, RESTART_COUNT, LocalAllocation
from hpc_resume.journal.folder import RunFolder
from hpc_resume.journal.reader import numbers, read_journal
from hpc_resume.journal.writer import JournalWriter
from hpc_resume.recovery import events as ev

OUTCOMES: dict[str, ev.ClaimOutcome] = {"0": "finished", "1": "failed", "75": "requeued", "143": "stopped"}


def main() -> int:
    run = RunFolder(Path(sys.argv[1]) / f"run-{int(sys.argv[2]):04d}")
    home = run.submission.path
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopped.append(number))

    def tell(what: str) -> None:
        with (home / "happened").open("a") as file:
            file.write(f"{what} {run.index}\n")

    starts = int(os.environ[RESTART_COUNT])
    words = json.loads((home / "script.json").read_text())[run.index]
    word = words[starts]
    (home / f"start-{run.index}-{starts}").write_text(f"{os.environ[JOB_ID]} {os.getpid()}")
    tell("start")
    if word in ("2", "3"):
        return int(word)
    if word == "stillborn":
        os.kill(os.getpid(), signal.SIGKILL)
    claim = max(numbers(run.journal, "claim"), default=0) + 1
    writer = JournalWriter(run.claim(claim), LocalAllocation().request(claim))
    writer.saw(read_journal(run).counts)
    writer.record(ev.ClaimOpened(claim=claim, committed=()))
    if word == "idle":
        os.kill(os.getpid(), signal.SIGKILL)
    writer.record(ev.AttemptStarted(attempt=claim, claim=claim, data_seed=0, host="here"))
    if word == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if word == "crashes":
        return 1
    if word == "waits":
        while not stopped and not (home / "go").exists():
            time.sleep(0.01)
        word = "143" if stopped else "0"
    writer.record(ev.ClaimEnded(claim=claim, outcome=OUTCOMES[word], message=""))
    tell("end")
    return int(word)


if __name__ == "__main__":
    raise SystemExit(main())
