from __future__ import annotations

import os
import select
import subprocess
import sys

import pytest
from monitor.curves import fallen, level, raised, watched

COMMAND = [sys.executable, "-m", "hpc_resume.monitor"]
LIMIT_S = 120

BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
"""Whoever sets that variable would not see that something is kept back."""


def filtered(text: str | bytes, **environment: str) -> subprocess.CompletedProcess[str]:
    data = text if isinstance(text, bytes) else text.encode()
    done = subprocess.run(
        COMMAND, input=data, capture_output=True, check=False, timeout=LIMIT_S, env=BUFFERED | environment
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def lines(losses, first=1, tail=""):
    return "".join(f"{step} {loss!r}{tail}\n" for step, loss in enumerate(losses, start=first))


def test_it_prints_the_step_of_each_verdict_of_the_monitor():
    losses = raised(fallen(2400), 1500, 0.2, over=400)
    losses[700:704] = [6.0] * 4
    losses[900] = float("nan")
    expected = [verdict.step for verdict in watched(losses)]
    done = filtered(lines(losses))
    assert (done.returncode, done.stderr) == (0, "")
    assert [int(line) for line in done.stdout.splitlines()] == expected
    assert len(expected) >= 3


def test_it_prints_an_alarm_at_once_and_not_when_its_input_ends():
    with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=BUFFERED) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(lines(level(200)).encode())
            for step in range(201, 211):
                process.stdin.write(f"{step} 6.0\n".encode())
            ready, _, _ = select.select([process.stdout], [], [], LIMIT_S)
            assert ready
            assert process.stdout.read(100) == b"210\n"
            assert process.poll() is None
            # It goes on, and has nothing more to say.
            process.stdin.write(lines(level(50), first=211).encode())
            process.stdin.close()
            assert process.stdout.read(100) == b""
            assert process.wait(LIMIT_S) == 0
        finally:
            process.kill()


@pytest.mark.parametrize("value", ["nan", "NaN", "inf", "-inf"])
def test_a_loss_that_is_not_finite_is_an_alarm(value):
    assert filtered(f"{lines(level(5))}6 {value}\n").stdout == "6\n"


def test_gradient_norms_may_be_there_or_not():
    spike = [6.0, 6.0, 2.66, 2.4, 2.4, 2.4]
    assert filtered(lines(level(100)) + lines(spike, first=101)).stdout == ""
    high = lines(spike[:2], first=101, tail=" 9.0") + lines(spike[2:], first=103)
    assert filtered(lines(level(100), tail=" 1.0") + high).stdout == "105\n"
    mixed = "".join(f"{step} {loss}{' 1.0' if step % 2 else ''}\n" for step, loss in enumerate(level(100), start=1))
    assert filtered(mixed + high).stdout == "105\n"


@pytest.mark.parametrize(
    "line",
    ["hello", "7", "seven 2.5", "7 two", "7 2.5 1.0e", "nan 2.5", "inf 2.5", "{'loss': 2.5}", "x" * 500],
    ids=lambda line: line[:20],
)
def test_a_bad_line_is_named_on_stderr_and_left_out(line):
    done = filtered(f"{lines(level(100))}\n{line}\n{lines([6.0] * 10, first=101)}")
    assert (done.returncode, done.stdout) == (0, "110\n")
    # The empty line before it is no mistake.
    [complaint] = done.stderr.splitlines()
    assert complaint == f"line 102: {line[:80]!r} is not `step loss [grad_norm]`; left out"


def test_bytes_that_are_no_text_are_a_bad_line_too():
    done = filtered(b"1 2.5\n\xff\xfe 2.5\n2 2.5\n", PYTHONIOENCODING="utf-8")
    assert (done.returncode, done.stdout) == (0, "")
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["line 2"]


@pytest.mark.parametrize("text", ["", "\n\n", "1 2.5", "1 2.5\r\n2 2.5\r\n"], ids=repr)
def test_input_without_anything_to_say_gives_nothing(text):
    done = filtered(text)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_closed_stdout_ends_it_without_a_trace():
    with subprocess.Popen(
        COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=BUFFERED
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        alarms = "".join(f"{step} {'nan' if step % 2 else 2.5}\n" for step in range(1, 200))
        _, complaints = process.communicate(alarms.encode(), timeout=LIMIT_S)
    assert complaints == b""
    assert process.returncode == 0


@pytest.mark.parametrize(("options", "code"), [(["--help"], 0), (["log.txt"], 2), (["--set", "x=1"], 2)])
def test_it_takes_no_options_and_says_so(options, code):
    done = subprocess.run([*COMMAND, *options], capture_output=True, text=True, check=False, timeout=LIMIT_S, input="")
    assert done.returncode == code
    assert "python -m hpc_resume.monitor < log" in (done.stdout if code == 0 else done.stderr)
