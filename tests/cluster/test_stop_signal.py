"""What a supervisor hears of those who want it to end, in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

LISTENER = """
import os, signal, sys, time
from hpc_resume.cluster.stop_signal import HELD_BACK, StopSignal
numbers, early = [int(n) for n in sys.argv[2:]], sys.argv[1] == "early"
def send():
    for number in numbers:
        os.kill(os.getpid(), number)
if early:
    # As a program does that is about to turn itself into a supervisor.
    signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)
    send()
    os.execv(sys.executable, [sys.executable, "-c", AGAIN])
stop = StopSignal()
send()
print(stop.requests, stop.requested, stop.requeue_wished)
"""
AGAIN = """
from hpc_resume.cluster.stop_signal import StopSignal
stop = StopSignal()
print(stop.requests, stop.requested, stop.requeue_wished)
"""


def heard(when: str, *numbers: signal.Signals) -> str:
    code = LISTENER.replace("AGAIN", repr(AGAIN))
    arguments = [str(int(number)) for number in numbers]
    done = subprocess.run(
        [sys.executable, "-c", code, when, *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=dict(os.environ),
    )
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([], "0 False False"),
        ([signal.SIGTERM], "1 True False"),
        ([signal.SIGINT, signal.SIGTERM], "2 True False"),
        ([signal.SIGUSR2], "0 False True"),
        ([signal.SIGUSR2, signal.SIGUSR2, signal.SIGTERM], "1 True True"),
        ([signal.SIGCONT], "0 False False"),
        ([signal.SIGCONT, signal.SIGTERM], "1 True False"),
    ],
    ids=lambda value: "+".join(number.name for number in value) or "nothing" if isinstance(value, list) else "",
)
def test_a_stop_is_counted_and_usr2_is_a_wish_to_save_and_go_back_to_the_queue(
    numbers: list[signal.Signals], expected: str
) -> None:
    assert heard("now", *numbers) == expected


@pytest.mark.parametrize(
    ("number", "expected"),
    [(signal.SIGTERM, "1 True False"), (signal.SIGINT, "1 True False"), (signal.SIGUSR2, "0 False True")],
    ids=lambda value: value.name if isinstance(value, signal.Signals) else "",
)
def test_what_was_held_back_before_the_supervisor_was_there_is_heard_by_it(
    number: signal.Signals, expected: str
) -> None:
    assert heard("early", number) == expected
