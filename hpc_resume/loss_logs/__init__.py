"""Reads loss curves out of training logs, whoever wrote them, and replays the monitor over them.

Rule of this package: a reader turns bytes into numbers and judges nothing; the judging is done by the very monitor
that watches live runs. Whatever a file holds, a reader returns curves or raises one `ConfigError` of one line. No
torch, no pandas. Each format is a module of its own; `read` recognises which one a file has.
"""

from hpc_resume.loss_logs.curve import LoggedPoint, LossCurve, NoCurveError
from hpc_resume.loss_logs.find import LogFiles, find_logs
from hpc_resume.loss_logs.read import read_curves, read_log
from hpc_resume.loss_logs.replay import Replay, replay

__all__ = [
    "LogFiles",
    "LoggedPoint",
    "LossCurve",
    "NoCurveError",
    "Replay",
    "find_logs",
    "read_curves",
    "read_log",
    "replay",
]
