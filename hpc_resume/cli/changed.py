"""Which runs a command changed, or why it left them alone, in one line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hpc_resume.reporting.summary import RunSummary, State

Why = tuple[str, str]
"""A reason as it is said of one run, and of several."""

OUT_OF_REACH: Why = (
    "has a supervisor that can't be asked from here (--owner-is-gone sends it)",
    "have supervisors that can't be asked from here (--owner-is-gone sends them)",
)
"""Why a run whose supervisor is on another host is not sent again."""

_FINISHED: Why = ("finished", "finished")
_ALIVE: Why = ("is alive", "are alive")

NOT_CANCELLED: dict[State, Why] = {
    "finished": _FINISHED,
    "cancelled": ("was cancelled before", "were cancelled before"),
}
"""Why a run in this state is not cancelled."""

NOT_SENT: dict[State, Why] = {
    "finished": _FINISHED,
    "waiting": ("waits in its queue", "wait in their queue"),
    "starting": _ALIVE,
    "running": _ALIVE,
    "requeued": _ALIVE,
    "cancelling": ("is being cancelled", "are being cancelled"),
    "cancelled": ("was cancelled (--cancelled brings it back)", "were cancelled (--cancelled brings them back)"),
}
"""Why a run in this state is not sent again."""


def named(runs: Sequence[int], of: int) -> str:
    """Name runs, like `run 0` or `runs 0, 1 (of 3)`."""
    names = f"{'run' if len(runs) == 1 else 'runs'} {', '.join(map(str, runs))}"
    return names if len(runs) == of else f"{names} (of {of})"


def nothing(to_do: str, reasons: Iterable[tuple[int, Why]]) -> str:
    """Say why nothing was done: `nothing to cancel: run 0 finished; runs 1, 2 were cancelled before`."""
    runs: dict[Why, list[int]] = {}
    for run, why in reasons:
        runs.setdefault(why, []).append(run)
    lines = [f"{named(of, len(of))} {one if len(of) == 1 else several}" for (one, several), of in runs.items()]
    return f"nothing to {to_do}: {'; '.join(lines)}"


def why_not_sent(summaries: Iterable[RunSummary], silent: Iterable[int]) -> list[tuple[int, Why]]:
    """Return for each run why it is not sent again; nobody here knows how the `silent` ones stand."""
    unknown = set(silent)
    return [(s.run, OUT_OF_REACH if s.run in unknown else NOT_SENT[s.state]) for s in summaries]
