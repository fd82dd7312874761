"""Ranks that start in a moment: forked from a process that has imported what takes seconds."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Literal

from hpc_resume.cluster.reports import RankReport, read_reports
from hpc_resume.cluster.srun import free_port
from hpc_resume.config.schema import RunConfig
from hpc_resume.journal.folder import RunFolder
from hpc_resume.journal.metrics import newest_rows
from hpc_resume.worker.process import RankProcess

StartMethod = Literal["forkserver", "spawn"]

_PRELOAD = ["hpc_resume.testing.preload"]
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """What the ranks of one attempt are to do."""

    folder: RunFolder
    attempt: int
    claim: int
    config: RunConfig
    trainer: str
    method: StartMethod
    stop_after: int | None = None
    """From this step on they are asked to leave."""
    kill_after: int | None = None
    """With this step they kill themselves."""


class Ranks:
    """The ranks of one attempt, as a supervisor handles workers."""

    def __init__(self, order: Order) -> None:
        """Start them."""
        self._order = order
        context = _context(order.method)
        port = free_port()
        self._processes = [
            context.Process(target=_rank, args=(order, rank, port)) for rank in range(order.config.world_size)
        ]
        with _one_thread():
            for process in self._processes:
                process.start()

    def wait(self, timeout_s: float) -> int | None:
        """Return an exit code once all ranks are gone, or None after `timeout_s`; one that fails ends the rest."""
        deadline = time.monotonic() + timeout_s
        while alive := [process for process in self._processes if process.exitcode is None]:
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            wait([process.sentinel for process in alive], left)
            if any(process.exitcode for process in self._processes):
                self.kill()
        return next((process.exitcode for process in self._processes if process.exitcode), 0)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every rank."""
        for process in self._processes:
            if process.exitcode is None and process.pid is not None:
                os.kill(process.pid, number)

    def kill(self) -> None:
        """End every rank at once and wait until they are gone."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()

    def reports(self) -> list[RankReport]:
        """Return what the ranks said of themselves, the first to fail first."""
        return read_reports(self._order.folder, self._order.attempt)

    def ran_out_of_memory(self) -> bool:
        """Return False: nobody here says so."""
        return False

    def were_killed(self) -> bool:
        """Tell whether ranks killed themselves as ordered; others may have died of that in their own way."""
        last = self._order.kill_after
        return last is not None and any(
            process.exitcode == -signal.SIGKILL and _newest_step(self._order, rank) >= last
            for rank, process in enumerate(self._processes)
        )


@contextmanager
def _one_thread() -> Iterator[None]:
    """Keep libraries from making threads when they are imported: what ranks are forked from must have one."""
    added = [name for name in _THREADS if name not in os.environ]
    os.environ.update(dict.fromkeys(added, "1"))
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def _context(method: StartMethod) -> Any:
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(_PRELOAD)
    return context


def _rank(order: Order, rank: int, port: int) -> None:
    """Be one rank, from its start to its end."""
    world = str(order.config.world_size)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    # Back to what a rank has otherwise: the processes of its DataLoader are to start like those of any rank.
    multiprocessing.set_start_method(None, force=True)
    process = RankProcess(order.folder, attempt=order.attempt, rank=rank)
    process.set_up()
    try:
        if order.method == "forkserver":
            _refuse_forked_threads()
        module, _, name = order.trainer.partition(":")
        trainer = getattr(importlib.import_module(module), name)
        trainer(order.folder, order.attempt, order.claim, order.config, _stop_requested(order, rank, process))
    except BaseException as error:
        process.report_failure(error)
        os._exit(1)
    # Not sys.exit: destructors of a process group can still abort what has ended well.
    os._exit(0)


def _stop_requested(order: Order, rank: int, process: RankProcess) -> Callable[[], bool]:
    """Return what a session asks once in every step, after it has written down that step's state."""

    def stop_requested() -> bool:
        step = _newest_step(order, rank)
        if order.kill_after is not None and step >= order.kill_after:
            os.kill(os.getpid(), signal.SIGKILL)
        return process.stop_requested() or (order.stop_after is not None and step >= order.stop_after)

    return stop_requested


def _newest_step(order: Order, rank: int) -> int:
    """Return the step that a rank has written down last."""
    return next((row["step"] for row in newest_rows(order.folder.trace(order.attempt, rank))), 0)


def _refuse_forked_threads() -> None:
    threads = len(list(Path(f"/proc/{os.getppid()}/task").iterdir()))
    if threads > 1:
        raise RuntimeError(
            f"this rank was forked from a process with {threads} threads, and may hang; start it with spawn"
        )
