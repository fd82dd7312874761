"""A writer for `test_writer.py`: starts when told to, records skipped steps, and says so after each."""

# ruff: noqa: T201 (it answers on its standard output)

from __future__ import annotations

import sys
from pathlib import Path

from hpc_resume.journal.writer import JournalWriter
from hpc_resume.recovery import events as ev

print("ready", flush=True)
sys.stdin.readline()
writer = JournalWriter(Path(sys.argv[1]), ev.StepSkipped(attempt=1, step=0))
print(0, flush=True)
for line in sys.stdin:
    writer.record(ev.StepSkipped(attempt=1, step=int(line)))
    print(int(line), flush=True)
