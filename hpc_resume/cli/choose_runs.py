"""Which runs of a submission a command means."""

from __future__ import annotations

from hpc_resume.errors import ConfigError
from hpc_resume.journal.folder import SubmissionFolder


def parse_runs(text: str | None, folder: SubmissionFolder, only: int | None = None) -> list[int]:
    """Return the runs named by a list like `3,7-9`; for None all of them, or the `only` one that the target is.

    Raises:
        ConfigError: the text is no such list, there is no such run, or the target is another one.
    """
    known = [run.index for run in folder.runs()]
    if text is None:
        return known if only is None else [only]
    chosen: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        # A dash without a number behind it, and a range that goes down, would choose other runs than were meant.
        if not first.isdecimal() or (dash and not (last.isdecimal() and int(first) <= int(last))):
            raise ConfigError(f"--runs is {text!r}; give numbers and ranges, like 3,7-9")
        chosen.update(range(int(first), int(last or first) + 1))
    unknown = sorted(chosen - set(known))
    if unknown:
        raise ConfigError(f"there is no run {unknown[0]} in {folder.path}; it has {_known(known)}")
    if only is not None and chosen != {only}:
        raise ConfigError(
            f"the target is run {only}, but --runs is {text!r}; leave --runs out, "
            f"or name the whole submission: {folder.path}"
        )
    return sorted(chosen)


def _known(runs: list[int]) -> str:
    return f"run {runs[0]} only" if len(runs) == 1 else f"runs {runs[0]} to {runs[-1]}"
