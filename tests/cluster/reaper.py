"""Starts a Python program, and becomes the parent of every orphan among its descendants until all of them are gone."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

PR_SET_CHILD_SUBREAPER = 36

ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
subprocess.Popen([sys.executable, *sys.argv[1:]])
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
os._exit(0)
