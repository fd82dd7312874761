"""A training for `test_metrics.py`, on whose disk no file can grow any more, for a while."""

# ruff: noqa: T201 (it answers on its standard output)

from __future__ import annotations

import resource
import sys
from pathlib import Path

from hpc_resume.session.metrics import MetricsWriter

_, allowed = resource.getrlimit(resource.RLIMIT_FSIZE)
writer = MetricsWriter(Path(sys.argv[1]), interval_s=0.001)
writer.phase("first step")
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, allowed))
for step in range(1, 201):
    writer.row(step=step, loss=2.0)
    writer.sync()
writer.phase("save")
print("still training, thread alive:", writer._thread.is_alive())
resource.setrlimit(resource.RLIMIT_FSIZE, (allowed, allowed))
writer.phase(None)
writer.row(step=201, loss=2.0)
writer.close()
