"""A supervisor in a process of its own, as the CLI starts it, with a few extra ways to get into trouble.

`run_supervisor.py RUN_FOLDER OPTIONS`, where OPTIONS is a JSON object:
`kill` is `["before" | "after", n]`: SIGKILL this process around the n-th record that supervisors of this run write;
`dead` lists claims that this supervisor takes for dead, and with `out_of_reach` it can't end their processes, like
those of a node that was cut off; `seconds_left` is a file that says how long the job may still run;
`interruption` and `why_lost` are what the cluster answers when it is asked for those, `{"error": ...}` for an error;
`avoidable` tells whether there are other nodes. What the cluster was asked to avoid lies in the file `avoided`.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

from hpc_resume.cluster.base import Interruption
from hpc_resume.cluster.local_allocation import LocalAllocation
from hpc_resume.config import load_run
from hpc_resume.errors import ClusterError, HpcResumeError
from hpc_resume.journal.claims import Liveness
from hpc_resume.journal.folder import RunFolder
from hpc_resume.journal.writer import JournalWriter
from hpc_resume.recovery import events as ev
from hpc_resume.supervisor import supervise


class Allocation(LocalAllocation):
    """This machine, with a wall clock, and with nodes that are out of reach."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__()
        self._dead: list[int] = options.get("dead", [])
        self._out_of_reach: bool = options.get("out_of_reach", False)
        self._clock: str | None = options.get("seconds_left")
        self._options = options

    def liveness(self, request: ev.ClaimRequested) -> Liveness:
        return "dead" if request.claim in self._dead else super().liveness(request)

    def end_leftovers(self, folder: RunFolder, attempt: int) -> None:
        if not self._out_of_reach:
            super().end_leftovers(folder, attempt)

    def interruption(self, *, suspicious: bool = False) -> Interruption | None:  # noqa: ARG002
        return self._answer("interruption")

    def why_lost(self, request: ev.ClaimRequested, nodes: tuple[str, ...]) -> Interruption | None:  # noqa: ARG002
        return self._answer("why_lost")

    def can_avoid(self, node: str) -> bool:  # noqa: ARG002
        return bool(self._options.get("avoidable"))

    def requeue(self, avoid: tuple[str, ...] = ()) -> None:
        Path(self._options["home"], "avoided").write_text(json.dumps(avoid))

    def _answer(self, name: str) -> Interruption | None:
        answer = self._options.get(name)
        if answer is None:
            return None
        if "error" in answer:
            raise ClusterError(answer["error"])
        return Interruption(**{**answer, "nodes": tuple(answer.get("nodes", ()))})

    def seconds_left(self) -> float | None:
        return float(Path(self._clock).read_text()) if self._clock else None


def die_at(folder: RunFolder, when: str, number: int) -> None:
    """Have this process killed around a record, once in the life of the run."""
    marker = folder.submission.path / "killed"
    create, record = JournalWriter.__init__, JournalWriter.record

    def is_it() -> bool:
        written = sum(len(p.read_bytes().splitlines()) for p in folder.journal.glob("claim-*.jsonl"))
        return written + 1 == number and not marker.exists()

    def around(write: Any, *arguments: Any) -> None:
        now = is_it()
        if not (now and when == "before"):
            write(*arguments)
        if now:
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def dying_create(self: JournalWriter, *arguments: Any) -> None:
        around(create, self, *arguments)

    def dying_record(self: JournalWriter, event: ev.Event) -> None:
        around(record, self, event)

    JournalWriter.__init__ = dying_create  # type: ignore[method-assign]
    JournalWriter.record = dying_record  # type: ignore[method-assign]


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="supervisor %(message)s")
    folder, options = RunFolder(Path(sys.argv[1])), json.loads(sys.argv[2])
    options["home"] = str(folder.submission.path)
    if "kill" in options:
        die_at(folder, *options["kill"])
    try:
        return supervise(folder, load_run(folder.submission.config, folder.index), Allocation(options))
    except HpcResumeError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
