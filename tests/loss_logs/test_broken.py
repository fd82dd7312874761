"""Whatever a file holds, a reader returns curves or raises one error of one line that says what was found."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import json
import lzma
import random
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hpc_resume.errors import ConfigError
from hpc_resume.loss_logs import NoCurveError, read_curves

EVAL_ONLY = json.dumps({"log_history": [{"step": 1, "eval_loss": 2.5}, {"step": 2, "eval_loss": 2.25}]})

BROKEN: dict[str, tuple[str, bytes, str]] = {
    "empty": ("a.jsonl", b"", "empty"),
    "empty, compressed": ("a.csv.gz", gzip.compress(b""), "empty"),
    "truncated JSON": ("trainer_state.json", b'{"log_history": [{"step": 1, "loss": 2.5}, {"st', "no whole JSON"),
    "JSON of something else": ("trainer_state.json", b'{"log_history": 3}', "no list of rows"),
    "evaluations alone": ("trainer_state.json", EVAL_ONLY.encode(), "only 2 rows with step, eval_loss"),
    "deep JSON": ("a.json", b"[" * 100_000, "JSON"),
    "steps that are no numbers": ("a.jsonl", b'{"step": "one", "loss": "two"}\n', "no training loss"),
    "binary": ("a.log", bytes(range(256)) * 40, "binary"),
    "JSON lines without a loss": ("a.jsonl", b'{"text": "words"}\n{"text": "more words"}\n', "2 rows with text"),
    "JSON lines that are none": ("a.jsonl", b"hello\nworld\n", "no JSON objects"),
    "a header alone": ("a.csv", b"step,loss\n", "no training loss"),
    "a table of something else": ("a.csv", b"name,age\nx,3\n", "no training loss"),
    "prose": ("a.txt", b"Once upon a time\nthere was a loss.\n", "in a form that is known"),
    "columns of something else": ("a.txt", b"1 2 3 4 5\n6 7 8 9 10\n", "step loss"),
    "compression that is cut off at once": ("a.csv.gz", gzip.compress(b"step,loss\n1,2\n")[:12], "in its first line"),
    "compression of garbage": ("a.csv.gz", b"\x1f\x8b" + b"garbage" * 20, "damaged"),
    "xz": ("a.csv.xz", lzma.compress(b"step,loss\n1,2\n"), "compressed by xz; decompress it first: xz -dk "),
    "zstd": ("a.csv.zst", b"\x28\xb5\x2f\xfd" + bytes(20), "compressed by zstd; decompress it first: zstd -d "),
    "bzip2": ("a.csv.bz2", bz2.compress(b"step,loss\n1,2\n"), "compressed by bzip2; decompress it first"),
    "decimal commas": ("a.csv", b"step;loss\n1;2,5\n2;2,25\n", "'loss' has no numbers, but '2,5'; write its decimals"),
    "a text log that begins with a bracket": ("a.log", b"[rank0] hello\n[rank0] bye\n", "no line of it has a step"),
    "an empty event file": ("events.out.tfevents.1", b"", "empty"),
    "an event file of garbage": ("events.out.tfevents.1", b"garbage" * 100, "TensorBoard event file"),
    "an event file of zeros": ("events.out.tfevents.1", bytes(160), "TensorBoard event file"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_one_line_says_what_is_wrong_with(tmp_path: Path, case: str) -> None:
    name, data, told = BROKEN[case]
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        read_curves(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert told in message
    assert "\n" not in message


def test_rows_whose_step_is_no_step_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"step,loss\n1,2\n2,2\n-1,2\n3.5,3\nx,4\n4,1\n")
    (curve,) = read_curves(path)
    assert [point.step for point in curve.points] == [1, 2, 4]


def test_a_file_without_a_loss_is_told_from_one_that_can_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "prose.txt").write_text("nothing to see\n")
    with pytest.raises(NoCurveError):
        read_curves(tmp_path / "prose.txt")
    (tmp_path / "trainer_state.json").write_text("{")
    with pytest.raises(ConfigError) as caught:
        read_curves(tmp_path / "trainer_state.json")
    assert not isinstance(caught.value, NoCurveError)


def test_of_a_gzip_file_that_is_cut_off_the_whole_lines_are_read_and_that_is_said(tmp_path: Path) -> None:
    noise = random.Random(1)
    text = "".join(f"{step} {3 + noise.random()}\n" for step in range(1, 2001))
    packed = gzip.compress(text.encode())
    path = tmp_path / "a.log.gz"
    path.write_bytes(packed[: len(packed) // 2])
    (curve,) = read_curves(path)
    lines = [line.split() for line in text.splitlines()]
    expected = [(int(step), float(loss)) for step, loss in lines[: len(curve.points)]]
    assert 500 < len(curve.points) < 1500
    assert [(point.step, point.loss) for point in curve.points] == expected
    assert curve.notes == ("the compressed file is cut off; what could be decompressed is used",)
    path.write_bytes(packed)
    (whole,) = read_curves(path)
    assert (len(whole.points), whole.notes) == (2000, ())


def test_a_path_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.csv: it can't be read: No such file"):
        read_curves(tmp_path / "missing.csv")
    with pytest.raises(ConfigError, match="neither a file nor a folder"):
        read_curves(Path("/dev/null"))
    with pytest.raises(ConfigError, match="can't be read"):
        read_curves(tmp_path / ("x" * 5000))


def test_without_tensorboard_one_line_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(bytes(12) + bytes(4))
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ConfigError, match="python -m pip install tensorboard"):
        read_curves(path)


NAMES = (
    "a.jsonl",
    "a.json",
    "trainer_state.json",
    "a.csv",
    "a.tsv",
    "a.txt",
    "a.log",
    "a",
    "a.csv.gz",
    "events.out.tfevents.1",
)
PARTS = (
    *"step loss iter nan Infinity 1 2.5 -3 1e999 null true train val log_history 1_0 1E+0 step,loss".split(),
    *":,;{}[]\"'#\t\n\r\0 ",
    *("iteration 1/ 2 |", "lm loss: 1E+0 |", "9" * 5000, " - ", "\u00e9", "\u2028", "\u0663"),
    *('{"step": 1, "loss": 2}', "{'loss': 1}"),
)
LIKE_A_LOG = st.lists(st.sampled_from(PARTS), max_size=40).map(lambda parts: "".join(parts).encode())
PACKED = st.binary(max_size=60).map(gzip.compress)


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=300) | LIKE_A_LOG | PACKED)
@example(data=b'{"step": ' + b"9" * 6000 + b', "loss": 1}')
@example(data=b"step,loss\n1,1\n" + b'"' + b"x" * 200_000)
@example(data=b"1 2\n" + "\u0663 1\n".encode())
@example(data=b"\xff\xfe1\x00")
def test_no_bytes_make_a_reader_raise_anything_else(tmp_path: Path, name: str, data: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    try:
        curves = read_curves(path)
    except ConfigError as error:
        told = str(error)
    else:
        told = ""
        assert curves
    assert "\n" not in told
    if told:
        return
    for curve in curves:
        steps = [point.step for point in curve.points]
        assert steps == sorted(set(steps))
        assert steps[0] >= 0


@pytest.mark.parametrize(
    "line",
    [
        "step" + " " * 20_000 + "loss",
        "step 1 loss" + " " * 20_000,
        "val" + " _" * 10_000 + "loss",
        "iteration" + " " * 20_000 + "1/ 2 | a",
        "iteration 1/ 2 | " + "a" * 20_000,
        "{'" * 10_000 + "loss",
        "{" + "'loss' : " * 2000,
        "loss step " * 2000,
        "1" * 20_000 + " train " + "1" * 20_000,
        "step " + "1" * 20_000 + " loss " + "1" * 20_000,
        "\x1b[" * 10_000 + " loss",
        "1/2 [loss" * 2000,
    ],
    ids=lambda line: line[:12],
)
def test_no_line_takes_long(tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.log"
    path.write_text(f"{line}\n" * 20)
    before = time.process_time()
    with contextlib.suppress(ConfigError):
        read_curves(path)
    assert time.process_time() - before < 3
