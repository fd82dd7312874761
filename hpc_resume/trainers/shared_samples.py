"""One rank makes the samples of a run, the others wait for the finished file, however long it takes.

Not at a barrier: that has a time-out, and nobody knows how long large data takes. Rank 0 shows in the metrics file that
it is at work, so that the supervisor does not take it for a hang.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from hpc_resume.config.schema import RunConfig
from hpc_resume.errors import RunBusyError
from hpc_resume.journal.claims import is_replaced
from hpc_resume.journal.folder import RunFolder
from hpc_resume.session.metrics import MetricsWriter
from hpc_resume.trainers.token_blocks import FACTS, Progress, TokenBlocks, prepare_token_blocks

_POLL_S = 1.0
_SIGN_OF_LIFE_S = 5.0


def share_samples(folder: RunFolder, attempt: int, claim: int, config: RunConfig, rank: int) -> TokenBlocks:
    """Make the run's samples on rank 0, if that was not done yet, and open them on every rank.

    Raises:
        RunBusyError: on rank 0, if a newer claim owns the run by now.
        TrainerError: the data can't be used, or is too little.
        ConnectionError: on the other ranks, if rank 0 failed.
    """
    if rank == 0:
        _make(folder, attempt, claim, config)
    else:
        wait_for_samples(folder.data, folder.rank_report(attempt, 0))
    blocks = TokenBlocks.open(folder.data)
    blocks.require(config.global_batch_size)
    return blocks


def wait_for_samples(folder: Path, report_of_maker: Path, poll_s: float = _POLL_S) -> None:
    """Wait until the samples in a folder are complete, or the rank that makes them reports that it failed."""
    while not (folder / FACTS).exists():
        if _has_failed(report_of_maker):
            # In a process group's own words, which everybody takes for a consequence and not for the cause.
            raise ConnectionError("Connection closed by peer: rank 0 failed while it made the samples; see its report")
        time.sleep(poll_s)


def throttled(progress: Progress, interval_s: float, clock: Callable[[], float] = time.monotonic) -> Progress:
    """Pass on what is told at once, and then at most every `interval_s` seconds."""
    last: float | None = None

    def pass_on(tokens: int) -> None:
        nonlocal last
        now = clock()
        if last is None or now - last >= interval_s:
            last = now
            progress(tokens)

    return pass_on


def _make(folder: RunFolder, attempt: int, claim: int, config: RunConfig) -> None:
    metrics = MetricsWriter(folder.metrics(attempt), config.supervisor.heartbeat_s)

    def tell(tokens: int) -> None:
        if is_replaced(folder, claim):
            # The files of this attempt are its own to write only as long as nobody else can have the same number.
            raise RunBusyError(f"{folder.path}: a newer supervisor owns this run; this attempt leaves")
        metrics.row(phase="data", tokens=tokens)

    try:
        metrics.phase("data")
        prepare_token_blocks(config.data, config.model, folder.data, throttled(tell, _SIGN_OF_LIFE_S))
        metrics.phase("start")  # the model is built next
    finally:
        metrics.close()


def _has_failed(report: Path) -> bool:
    try:
        return bool(json.loads(report.read_text(encoding="utf-8"))["state"] == "failed")
    except FileNotFoundError:
        return False
