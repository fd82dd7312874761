"""What ranks say of themselves: who they are, and why they failed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from hpc_resume.journal.folder import RunFolder


@dataclass(frozen=True, kw_only=True, slots=True)
class RankReport:
    """One rank's word."""

    rank: int
    pid: int
    state: str
    time: float
    host: str = ""
    boot_id: str = ""
    start_ticks: int = 0
    step: str = ""
    """The Slurm step that it belongs to, as `scancel` takes it; empty elsewhere."""
    error: str = ""
    message: str = ""
    place: str = ""
    by_user: bool = False


def read_reports(folder: RunFolder, attempt: int) -> list[RankReport]:
    """Return what the ranks of an attempt said of themselves, the earliest first."""
    found = []
    for path in sorted(folder.rank_report(attempt, 0).parent.glob("rank-*.json")):
        try:
            data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            continue  # torn by a power loss; whoever wrote it is gone
        found.append(
            RankReport(
                rank=data["rank"],
                pid=data["pid"],
                state=data["state"],
                time=data["time"],
                host=data.get("host", ""),
                boot_id=data.get("boot_id", ""),
                start_ticks=data.get("start_ticks", 0),
                step=data.get("step", ""),
                error=data.get("type", ""),
                message=data.get("message", ""),
                place=data.get("place", ""),
                by_user=data.get("by_user", False),
            )
        )
    return sorted(found, key=lambda report: report.time)
