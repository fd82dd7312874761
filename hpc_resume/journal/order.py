"""The data order in force: a fold of the journal, never taken from a checkpoint."""

from __future__ import annotations

import hashlib

from hpc_resume.data_order import Segment, Window
from hpc_resume.recovery.history import History


def segments_in_force(history: History) -> tuple[Segment, ...]:
    """Return what the incidents of a run did to its order so far."""
    return tuple(
        Segment(start=rewind.position, number=rewind.number, window=Window(*rewind.window) if rewind.window else None)
        for rewind in history.rewinds
        if rewind.perturb
    )


def data_seed(seed: int, segments: tuple[Segment, ...]) -> int:
    """Return one integer that names the order in force: the config's seed until something perturbs it."""
    if not segments:
        return seed
    digest = hashlib.sha256(f"{seed}/{segments[-1].number}".encode()).digest()
    return int.from_bytes(digest[:4], "big")
