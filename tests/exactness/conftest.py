"""What was compared is said at the end."""

from __future__ import annotations

import pytest
from exactness.cells import TALLY


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if TALLY.cells:
        terminalreporter.write_line(str(TALLY))
