from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path

import pytest

from hpc_resume.journal.metrics import loss_at, newest_rows, read_heartbeat, read_rows
from hpc_resume.session.metrics import MetricsWriter

NEVER_S = 3600.0


def test_rows_reach_the_disk_when_they_are_synced_and_not_before(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path, NEVER_S)
    writer.row(step=1, loss=2.5)
    assert read_rows(path) == []
    writer.sync()
    assert read_rows(path) == [{"step": 1, "loss": 2.5}]
    writer.close()


def test_a_phase_is_announced_at_once_with_all_rows_before_it(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path, NEVER_S)
    writer.row(step=1, loss=2.5, step_s=0.5)
    writer.phase("save")
    beat = read_heartbeat(path)
    assert (beat.phase, beat.usual_step_s) == ("save", 0.5)
    writer.phase(None)
    assert read_heartbeat(path).phase is None
    assert read_heartbeat(path).size > beat.size
    writer.close()


def test_closing_brings_everything_to_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path, NEVER_S)
    writer.row(step=1, loss=float("nan"))
    writer.close()
    (row,) = read_rows(path)
    assert row["loss"] != row["loss"]


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step":1,"loss":2.0}\n{"step":2,"lo', encoding="utf-8")
    assert read_rows(path) == [{"step": 1, "loss": 2.0}]


def test_rows_are_read_from_the_end_over_any_number_of_blocks(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    rows = [{"step": step, "loss": 1.0, "filler": "x" * (step % 700)} for step in range(1, 1000)]
    writer = MetricsWriter(path, NEVER_S)
    for row in rows:
        writer.row(**row)
        writer.row(phase=None)
    writer.close()
    assert path.stat().st_size > 3 * 65536
    assert list(newest_rows(path)) == rows[::-1]


def test_the_newest_step_of_a_huge_file_costs_only_its_end(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with path.open("wb") as file:
        file.seek(2**28)
        file.write(b'\n{"step":7,"loss":2.5}\n{"step":8,"loss":2.0}\n{"phase":"save"}\n{"step":9,"lo')
    tracemalloc.start()
    assert next(newest_rows(path))["step"] == 8
    assert loss_at(path, 7) == 2.5
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20


def test_a_step_that_was_done_twice_has_its_newest_loss(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f'{{"step":{s},"loss":{n}}}\n' for n, s in enumerate((3, 4, 5, 4, 6))), encoding="utf-8")
    assert [loss_at(path, step) for step in (2, 3, 4, 5, 6, 7)] == [None, 0.0, 3.0, None, 4.0, None]


def test_a_slow_disk_does_not_keep_the_training_step_waiting(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    os.mkfifo(path)  # Whoever writes to it waits until somebody reads: a disk as slow as we like.
    writer = MetricsWriter(path, NEVER_S)
    writer.row(step=1, filler="x" * 2**20)
    syncing = threading.Thread(target=writer.sync, daemon=True)
    syncing.start()
    with path.open("rb", buffering=0) as disk:
        assert disk.read(1) == b"{"  # It has begun to write, and a pipe can't hold a megabyte.
        training = threading.Thread(target=writer.row, kwargs={"step": 2}, daemon=True)
        training.start()
        training.join(timeout=30)
        assert not training.is_alive()
        assert syncing.is_alive()
        while syncing.is_alive() and disk.read(2**16):
            pass
        syncing.join()
    path.unlink()
    writer.close()
    # A pipe can't be synced, so the first row was not safe there and was written again.
    assert [row["step"] for row in read_rows(path)] == [1, 2]


def test_what_a_full_disk_refused_is_written_when_there_is_room_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics" / "metrics.jsonl"
    program = Path(__file__).with_name("fills_its_disk.py")
    done = subprocess.run(
        [sys.executable, program, path], capture_output=True, text=True, check=True, timeout=60, env={**os.environ}
    )
    # After the first phase nothing more went in; the file holds only whole rows even then.
    assert done.stdout.splitlines() == ["still training, thread alive: True"]
    assert done.stderr.count("File too large") == 1
    assert "can be written to again; 0 rows were dropped" in done.stderr
    text = path.read_text(encoding="utf-8")
    rows = read_rows(path)
    assert len(rows) == text.count("\n") == 204
    assert [row["step"] for row in rows if "step" in row] == list(range(1, 202))
    assert [row["phase"] for row in rows if "phase" in row] == ["first step", "save", None]


def test_a_device_that_is_always_full_is_no_reason_to_stop(caplog: pytest.LogCaptureFixture) -> None:
    writer = MetricsWriter(Path("/dev/full"), NEVER_S)
    writer.row(step=1)
    writer.phase("save")
    writer.close()
    assert "No space left on device" in caplog.text
    assert "2 rows could not be written to /dev/full and are lost" in caplog.text


def test_only_the_newest_rows_wait_for_a_disk_and_the_log_says_how_many_did_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "metrics").write_text("in the way")
    path = tmp_path / "metrics" / "metrics.jsonl"
    writer = MetricsWriter(path, NEVER_S, keep_rows=10)
    for step in range(25):
        writer.row(step=step)
        writer.sync()
    (tmp_path / "metrics").unlink()
    writer.close()
    assert [row["step"] for row in read_rows(path)] == list(range(15, 25))
    assert "15 rows were dropped" in caplog.text


def test_without_a_file_the_workers_are_still_starting(tmp_path: Path) -> None:
    beat = read_heartbeat(tmp_path / "none.jsonl")
    assert (beat.size, beat.phase, beat.usual_step_s) == (0, "start", None)


def test_on_a_full_disk_the_time_of_the_file_is_the_sign_of_life(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path, NEVER_S)
    writer.row(step=1, loss=2.5)
    writer.sync()
    os.utime(path, ns=(1, 1))
    before = read_heartbeat(path)
    writer._append = refuse  # type: ignore[method-assign]
    writer.row(step=2, loss=2.4)
    writer.sync()
    after = read_heartbeat(path)
    assert (after.size, after.changed_ns > before.changed_ns) == (before.size, True)
    # Without a new row there is no sign of life: a training that hangs on a full disk is still a hang.
    os.utime(path, ns=(1, 1))
    writer.sync()
    assert read_heartbeat(path).changed_ns == before.changed_ns
    writer.close()


def refuse(_data: bytes) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
