"""What submitit starts in the batch step of a job: it turns itself into the supervisor."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from typing import Any

from hpc_resume.cluster.stop_signal import HELD_BACK


@dataclass
class SlurmJob:
    """The description that submitit hands over; the same for every element of an array."""

    folder: str
    only: int
    """The run, where the job is no array."""

    def checkpoint(self) -> Any:
        """Return the same description again: all state is in the journals."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)

    def __call__(self) -> None:
        """Become the supervisor of this element's run, in the same process, so that it hears what Slurm sends."""
        index = os.environ.get("SLURM_ARRAY_TASK_ID", str(self.only))
        # Handlers do not outlive exec, but what is held back does, and is heard once the supervisor listens.
        signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, "-m", "hpc_resume", "run", self.folder, "--index", index])
