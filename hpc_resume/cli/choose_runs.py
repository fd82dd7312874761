"""Which runs of a submission a command means."""

from __future__ import annotations

from hpc_resume.errors import ConfigError
from hpc_resume.journal.folder import SubmissionFolder


def parse_runs(text: str | None, folder: SubmissionFolder) -> list[int]:
    """Return the runs named by a list like `3,7-9`; all of them for None.

    Raises:
        ConfigError: the text is no such list, or there is no such run.
    """
    known = [run.index for run in folder.runs()]
    if text is None:
        return known
    chosen: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            raise ConfigError(f"--runs is {text!r}; give numbers and ranges, like 3,7-9")
        chosen.update(range(int(first), int(last or first) + 1))
    unknown = sorted(chosen - set(known))
    if unknown:
        raise ConfigError(f"there is no run {unknown[0]} in {folder.path}; it has runs {known[0]} to {known[-1]}")
    return sorted(chosen)
