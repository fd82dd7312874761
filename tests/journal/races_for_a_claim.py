"""A supervisor for `test_claims.py`: waits for the start, asks for the run, says what came of it, and waits again."""

# ruff: noqa: T201 (it answers on its standard output)

from __future__ import annotations

import os
import sys
from pathlib import Path

from hpc_resume.cluster.processes import boot_id, is_running, start_ticks
from hpc_resume.errors import RunBusyError
from hpc_resume.journal.claims import Liveness, open_claim
from hpc_resume.journal.folder import RunFolder
from hpc_resume.recovery import events as ev


def request(claim: int) -> ev.ClaimRequested:
    pid = os.getpid()
    return ev.ClaimRequested(
        claim=claim,
        cluster="local",
        job_id="",
        restart_count=0,
        host="here",
        pid=pid,
        boot_id=boot_id(),
        start_ticks=start_ticks(pid),
    )


def liveness(owner: ev.ClaimRequested) -> Liveness:
    return "alive" if is_running(owner.pid, owner.start_ticks) else "dead"


print("ready", flush=True)
sys.stdin.readline()
try:
    print("opened", open_claim(RunFolder(Path(sys.argv[1])), request, liveness, list)[0], flush=True)
except RunBusyError:
    print("refused", flush=True)
sys.stdin.readline()
