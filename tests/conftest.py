from __future__ import annotations

import pytest
from hypothesis import settings
from slurm.cluster import HOW_TO_GET_IT, NO_SLURM

# Nothing here is timed: a busy machine must not fail a property that holds.
settings.register_profile("tests", deadline=None, database=None)
settings.load_profile("tests")


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
