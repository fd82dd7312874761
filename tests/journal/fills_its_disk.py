"""A writer for `test_writer.py`: the system lets no file of this process grow beyond the size that it is given."""

# ruff: noqa: T201 (it answers on its standard output)

from __future__ import annotations

import resource
import sys
from pathlib import Path

from hpc_resume.errors import JournalError
from hpc_resume.journal.writer import JournalWriter
from hpc_resume.recovery import events as ev

path, limit = Path(sys.argv[1]), int(sys.argv[2])
_, allowed = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, allowed))
recorded = 0
writer = None
try:
    writer = JournalWriter(path, ev.StepSkipped(attempt=1, step=0))
    for step in range(1, 1000):
        recorded += 1
        writer.record(ev.StepSkipped(attempt=1, step=step))
except JournalError as error:
    print(recorded, error, sep="\n")
# The disk has room again; what was refused must not come after all.
resource.setrlimit(resource.RLIMIT_FSIZE, (allowed, allowed))
if writer is not None:
    writer.close()
