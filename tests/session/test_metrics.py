from __future__ import annotations

from pathlib import Path

from hpc_resume.journal.metrics import read_heartbeat, read_rows
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


def test_without_a_file_the_workers_are_still_starting(tmp_path: Path) -> None:
    beat = read_heartbeat(tmp_path / "none.jsonl")
    assert (beat.size, beat.phase, beat.usual_step_s) == (0, "start", None)
