"""Faults on request: real ones, set off once each, and recorded before they happen."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable

from hpc_resume.config.schema import FaultConfig
from hpc_resume.recovery.history import History


class FaultInjector:
    """Knows which of the config's faults are still to come; every rank holds the same one."""

    def __init__(self, faults: tuple[FaultConfig, ...], rank: int, poison: Callable[[], None]) -> None:
        """`poison` turns this rank's weights into NaN."""
        self._faults = faults
        self._rank = rank
        self._poison = poison
        self._spikes: list[tuple[int, FaultConfig]] = []
        self._failing_saves = 0

    def due(self, history: History, step: int) -> list[tuple[int, FaultConfig]]:
        """Return the faults to set off before optimizer step `step`, with their index in the config."""
        used = [fault.index for fault in history.faults]
        return [(i, f) for i, f in enumerate(self._faults) if f.step == step and used.count(i) < f.times]

    def lr_factor(self, step: int) -> float:
        """Return what the learning rate of a step is multiplied by."""
        factor = 1.0
        for first, fault in self._spikes:
            if first <= step < first + fault.duration_steps:
                factor *= fault.lr_factor
        return factor

    def before_commit(self) -> None:
        """Fail as a full disk does, if a failing save was asked for."""
        if self._failing_saves > 0:
            self._failing_saves -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC) + " (injected)")

    def forget(self) -> None:
        """Take back what is still to come of a fault that was set off, as new processes would not know of it."""
        self._spikes.clear()
        self._failing_saves = 0

    def set_off(self, fault: FaultConfig, supervisor_pid: int) -> None:
        """Make it happen; all ranks call this, and the fault's own rank or all of them are hit."""
        mine = fault.rank == self._rank
        match fault.kind:
            case "spike":
                self._spikes.append((fault.step, fault))
            case "save_fails":
                self._failing_saves += 1
            case "nan":
                if mine:
                    self._poison()
            case "exception":
                if mine:
                    raise RuntimeError(f"injected exception before step {fault.step}")
            case "rank_kill":
                if mine:
                    os.kill(os.getpid(), signal.SIGKILL)
            case "rank_hang":
                if mine:
                    threading.Event().wait()
            case "node_lost":
                if self._rank == 0:
                    os.kill(supervisor_pid, signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)
