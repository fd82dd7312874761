"""The monitor as a filter: `step loss [grad_norm]` lines in, the steps at which it speaks out.

    python -m hpc_resume.monitor < log

Each line is judged when it comes, from those before it alone; a step is printed once for each incident or near miss, at
once. Values that are not numbers, and lines with fewer than two, are named on stderr and left out. Where the step goes
back, the monitor starts afresh. Settings are the defaults, and the exit code is 0 whatever it says; for settings,
reasons and whole files there is `python -m hpc_resume backtest`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TextIO

from hpc_resume.monitor.monitor import Monitor
from hpc_resume.monitor.observation import Observation
from hpc_resume.monitor.settings import MonitorSettings
from hpc_resume.monitor.verdict import Verdict


def verdicts(lines: Iterable[str], complaints: TextIO) -> Iterator[Verdict]:
    """Yield what the monitor says about the lines, one after the other."""
    monitor, last = Monitor(MonitorSettings()), -1
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            step, loss, *rest = line.split()
            grad_norm = float(rest[0]) if rest else None
            at = int(float(step))
            observation = Observation(
                step=at, start_position=max(0, at - 1), position=at, loss=float(loss), grad_norm=grad_norm
            )
        except (ValueError, OverflowError):
            complaints.write(f"line {number}: {line.strip()[:80]!r} is not `step loss [grad_norm]`; left out\n")
            continue
        if at < last:
            # Another training begins, or this one again: what is known is of steps that may not count.
            monitor = Monitor(MonitorSettings())
        last = at
        verdict = monitor.observe(observation)
        if verdict is not None:
            yield verdict


def main(arguments: Sequence[str]) -> int:
    """Read stdin, and print the step of every verdict; there are no options."""
    if arguments:
        asked = list(arguments) in (["--help"], ["-h"])
        (sys.stdout if asked else sys.stderr).write(f"{(__doc__ or '').strip()}\n")
        return 0 if asked else 2
    try:
        # Decoded here, because a byte that is no UTF-8 makes its line a bad one and is no reason to end.
        lines = (line.decode(errors="replace") for line in sys.stdin.buffer)
        for verdict in verdicts(lines, sys.stderr):
            sys.stdout.write(f"{verdict.step}\n")
            sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Nobody reads on; what is left must not be tried again at the interpreter's end.
        with suppress(BrokenPipeError):
            sys.stdout.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
