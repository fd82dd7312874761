"""Entry of a rank: set the process up, train, and say why if that fails."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hpc_resume.cluster.srun import become_rank
from hpc_resume.errors import RunBusyError
from hpc_resume.journal.claims import is_replaced
from hpc_resume.journal.folder import RunFolder
from hpc_resume.worker.process import RankProcess


def main() -> None:
    """Run one rank of one attempt and leave with 0, or with 1 and a report."""
    folder, attempt, claim = RunFolder(Path(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3])
    # Before anything is written: a newer claim may have given its own attempt the same number.
    if is_replaced(folder, claim):
        raise RunBusyError(f"{folder.path}: a newer supervisor owns this run; this rank of claim {claim} leaves")
    become_rank(os.environ)
    process = RankProcess(folder, attempt=attempt, rank=int(os.environ["RANK"]))
    process.set_up()
    try:
        # Only here, so that a broken installation of torch is reported like any other failure.
        from hpc_resume.worker.train import train

        train(folder, attempt, claim, process.stop_requested)
    except BaseException as error:
        try:
            process.report_failure(error)
        finally:
            # Whatever became of the report, and not sys.exit: destructors of a broken process group can wait for ever.
            os._exit(1)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
