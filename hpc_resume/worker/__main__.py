"""Entry of a rank: set the process up, train, and say why if that fails."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hpc_resume.journal.folder import RunFolder
from hpc_resume.worker.process import RankProcess


def main() -> None:
    """Run one rank of one attempt and leave with 0, or with 1 and a report."""
    folder = RunFolder(Path(sys.argv[1]))
    process = RankProcess(folder, attempt=int(sys.argv[2]), rank=int(os.environ["RANK"]))
    process.set_up()
    try:
        # Only here, so that a broken installation of torch is reported like any other failure.
        from hpc_resume.worker.train import train

        train(folder, process.attempt, process.stop_requested)
    except BaseException as error:
        process.report_failure(error)
        # Not sys.exit: destructors of a broken process group can wait for ever.
        os._exit(1)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
