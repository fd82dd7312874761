"""Programs that answer in Slurm's place, with what a test wants them to say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

INVALID = "slurm_load_jobs error: Invalid job id specified\n"
"""What `scontrol` says of a job that it does not know, or no more."""
UNREACHABLE = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n"
STALLED = "slurm_load_jobs error: Socket timed out on send/recv operation\n"


class StandInSlurm:
    """All that is on PATH; a program that was given no answer is missing."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        folder.mkdir()
        patch.setenv("PATH", str(folder))

    def answers(self, program: str, text: str = "", *, errors: str = "", code: int = 0) -> None:
        """Let a program print this, whatever it is asked."""
        path = self.folder / program
        path.with_suffix(".out").write_text(text, encoding="utf-8")
        path.with_suffix(".err").write_text(errors, encoding="utf-8")
        script = f'#!/bin/sh\necho "$@" >>"$0.asked"\n/bin/cat "$0.out"\n/bin/cat "$0.err" >&2\nexit {code}\n'
        path.write_text(script, encoding="utf-8")
        path.chmod(0o755)

    def refuses(self, program: str, errors: str) -> None:
        """Let a program complain and fail."""
        self.answers(program, errors=errors, code=1)

    def asked(self, program: str) -> Sequence[str]:
        """What a program was asked, call by call."""
        path = self.folder / f"{program}.asked"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def job_line(job_id: str, state: str, **fields: object) -> str:
    """Return what `scontrol -o show job` prints for a job, or for an element like `7_2`, shortened."""
    array, _, task = job_id.partition("_")
    names = f"JobId={int(array) + int(task) + 1} ArrayJobId={array} ArrayTaskId={task}" if task else f"JobId={array}"
    more = " ".join(f"{name}={value}" for name, value in fields.items())
    return f"{names} JobName=small JobState={state} {more}\n"
