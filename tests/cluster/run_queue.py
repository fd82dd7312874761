"""The local queue in a process of its own: `run_queue.py FOLDER PARALLELISM RUNS [STUB PAUSE_S]`.

With STUB, that program is started instead of the command line's supervisor, and PAUSE_S is the first pause.
"""

from __future__ import annotations

import json
import sys

from hpc_resume.cluster import local_queue

folder, parallelism, runs, *stub = sys.argv[1:]
if stub:
    local_queue._command = lambda folder, index: [sys.executable, stub[0], folder, str(index)]
    local_queue._PAUSE_S = float(stub[1])
local_queue.LocalQueue(folder, json.loads(runs), int(parallelism))()
