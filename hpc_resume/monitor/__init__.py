"""Says whether training is healthy: floats in, verdict out.

Rule of this package: no torch, no clock, no files. A monitor's answers depend only on its settings and on the
steps it was shown, and all that it remembers is a plain bounded dict; so a resumed run is judged as the unbroken
one would have been, and old logs are judged by the very code that watches live runs. Each detector is a module of
its own; `monitor.fresh_detectors` lists them. Only `__main__`, the filter for other programs, reads and writes.
"""

from hpc_resume.monitor.detector import Detector, State
from hpc_resume.monitor.monitor import Monitor
from hpc_resume.monitor.observation import Observation
from hpc_resume.monitor.settings import MonitorSettings
from hpc_resume.monitor.verdict import Verdict, VerdictKind

__all__ = ["Detector", "Monitor", "MonitorSettings", "Observation", "State", "Verdict", "VerdictKind"]
