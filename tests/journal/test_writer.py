"""One writer per file, every record on disk at once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hpc_resume.errors import JournalError
from hpc_resume.journal.folder import RunFolder
from hpc_resume.journal.reader import read_journal
from hpc_resume.journal.writer import JournalWriter
from hpc_resume.recovery import events as ev

HERE = Path(__file__).parent
Process = subprocess.Popen[str]


def _skipped(step: int) -> ev.StepSkipped:
    return ev.StepSkipped(attempt=1, step=step)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@contextmanager
def _writers(path: Path, count: int) -> Iterator[list[Process]]:
    """Start processes that stand ready to create a file at the first word, and to append to it at any other."""
    command = [sys.executable, str(HERE / "records_until_killed.py"), str(path)]
    pipe = subprocess.PIPE
    processes = [subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) for _ in range(count)]
    try:
        assert [_answer(process) for process in processes] == ["ready\n"] * count
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _tell(process: Process, step: int) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{step}\n")
    process.stdin.flush()


def _answer(process: Process) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def _told(process: Process, step: int) -> str:
    _tell(process, step)
    return _answer(process)


def test_a_file_appears_with_its_first_record(folder: RunFolder) -> None:
    path = folder.attempt(1)
    JournalWriter(path, _skipped(0)).close()
    assert [line["event"] for line in _lines(path)] == [{"kind": "step_skipped", "attempt": 1, "step": 0}]
    assert list(folder.journal.iterdir()) == [path]


def test_the_second_who_wants_the_same_file_is_refused_and_leaves_no_trace(folder: RunFolder) -> None:
    path = folder.attempt(1)
    JournalWriter(path, _skipped(0)).close()
    before = path.read_bytes()
    with pytest.raises(FileExistsError):
        JournalWriter(path, _skipped(1))
    assert path.read_bytes() == before
    assert list(folder.journal.iterdir()) == [path]


def test_records_are_numbered_and_in_their_order(folder: RunFolder) -> None:
    writer = JournalWriter(folder.attempt(1), _skipped(0))
    for step in (1, 2, 3):
        writer.record(_skipped(step))
    writer.close()
    assert [(line["seq"], line["event"]["step"]) for line in _lines(folder.attempt(1))] == [
        (1, 0),
        (2, 1),
        (3, 2),
        (4, 3),
    ]


def test_seen_names_only_what_is_new_since_the_last_record(folder: RunFolder) -> None:
    writer = JournalWriter(folder.attempt(1), _skipped(0), {"claim-0001": 3})
    writer.record(_skipped(1))
    writer.saw({"claim-0001": 4, "operator-0001": 2, "attempt-0001": 2})
    writer.record(_skipped(2))
    writer.saw({"claim-0001": 4, "operator-0001": 2})
    writer.record(_skipped(3))
    writer.close()
    seen = [line["seen"] for line in _lines(folder.attempt(1))]
    assert seen == [{"claim-0001": 3}, {}, {"claim-0001": 4, "operator-0001": 2}, {}]


def test_a_reader_adds_the_news_up_again(folder: RunFolder) -> None:
    writer = JournalWriter(folder.attempt(1), _skipped(0), {"claim-0001": 3})
    writer.saw({"claim-0002": 1})
    writer.record(_skipped(1))
    writer.close()
    assert [r.seen for r in read_journal(folder).records] == [{"claim-0001": 3}, {"claim-0002": 1}]


def test_what_was_recorded_is_seen_at_once_and_outlives_a_killed_writer(folder: RunFolder) -> None:
    with _writers(folder.attempt(1), 1) as (process,):
        for step in range(4):
            assert _told(process, step) == f"{step}\n"
            # The writer is alive, and its file open: whoever reads now sees the record.
            assert [r.event for r in read_journal(folder).records] == [_skipped(n) for n in range(step + 1)]
    assert [r.event for r in read_journal(folder).records] == [_skipped(n) for n in range(4)]


def test_of_many_processes_that_want_the_same_file_one_gets_it(folder: RunFolder) -> None:
    with _writers(folder.attempt(1), 4) as processes:
        for process in processes:
            _tell(process, 0)
        answers = [_answer(process) for process in processes]
    assert sorted(answers) == ["", "", "", "0\n"]
    assert [r.event for r in read_journal(folder).records] == [_skipped(0)]
    assert list(folder.journal.iterdir()) == [folder.attempt(1)]


def test_a_full_disk_is_an_error_and_what_was_recorded_before_stays(folder: RunFolder) -> None:
    command = [sys.executable, str(HERE / "fills_its_disk.py"), str(folder.attempt(1)), "1000"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    recorded, message = done.stdout.splitlines()
    assert message == f"can't write to {folder.attempt(1)}: File too large; is the disk full?"
    journal = read_journal(folder)
    assert [r.event for r in journal.records] == [_skipped(n) for n in range(int(recorded))]
    assert journal.torn == 1


def test_a_disk_too_full_for_the_first_record_leaves_no_journal_file(folder: RunFolder) -> None:
    command = [sys.executable, str(HERE / "fills_its_disk.py"), str(folder.attempt(1)), "10"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"can't create {folder.attempt(1)}: File too large" in done.stdout
    assert read_journal(folder).counts == {}


def test_a_folder_that_is_not_there_is_an_error_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=r"can't create .*: No such file or directory") as caught:
        JournalWriter(tmp_path / "nowhere" / "claim-0001.jsonl", _skipped(0))
    assert "\n" not in str(caught.value)


def test_floats_that_are_no_numbers_reach_the_disk_and_come_back(folder: RunFolder) -> None:
    event = ev.ReplayDiffers(attempt=1, step=1, before=float("nan"), now=float("inf"))
    JournalWriter(folder.attempt(1), event).close()
    (record,) = read_journal(folder).records
    assert repr(record.event) == repr(event)
