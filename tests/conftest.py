from __future__ import annotations

import pytest
from slurm.cluster import HOW_TO_GET_IT, NO_SLURM


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Say as the very last line, below the counts, what was not tested for lack of Slurm."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return
    skipped = reporter.stats.get("skipped", [])
    count = sum(isinstance(report.longrepr, tuple) and NO_SLURM in report.longrepr[2] for report in skipped)
    if count:
        reporter.write_line(f"{count} tests on a real Slurm cluster were skipped; to run them: {HOW_TO_GET_IT}")
