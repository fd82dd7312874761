"""Nothing that was recorded stays unseen."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from hpc_resume.cli.output import show_reports, show_status, write_json
from hpc_resume.journal.folder import RunFolder
from hpc_resume.journal.writer import JournalWriter
from hpc_resume.recovery import events as ev
from hpc_resume.reporting.jobs import Jobs
from hpc_resume.reporting.report import make_report
from hpc_resume.reporting.summary import summarize_submission

ODD = {
    "skipped steps": 2,
    "replayed steps that differed": 1,
    "failed saves": 1,
    "disagreements between sources": 3,
    "torn lines in the journal": 1,
    "records of a replaced supervisor, without effect": 1,
}


@pytest.fixture
def odd_run(folder: RunFolder, owner: JournalWriter, request_of: Callable[..., ev.ClaimRequested]) -> RunFolder:
    """A run in which everything odd happened that is recorded."""
    for event in (
        *[ev.StepSkipped(attempt=1, step=step) for step in (3, 4)],
        ev.ReplayDiffers(attempt=1, step=5, before=2.0, now=2.5),
        ev.SaveFailed(attempt=1, step=6, message="disk full"),
        *[ev.Disagreement(message=f"number {n}") for n in range(3)],
    ):
        owner.record(event)
    successor = JournalWriter(folder.claim(2), request_of(2, alive=False), {"claim-0001": 12})
    successor.record(ev.ClaimOpened(claim=2, committed=()))
    successor.close()
    owner.record(ev.Disagreement(message="of a zombie"))
    with folder.claim(2).open("ab") as file:
        file.write(b'{"seq":3,"ti')
    return folder


def test_the_report_counts_all_that_was_odd(odd_run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    report = make_report(odd_run, Jobs(odd_run.submission))
    assert report.odd == ODD
    page = odd_run.report.read_text(encoding="utf-8")
    show_reports([report], as_json=False)
    shown = capsys.readouterr().out
    for name, count in ODD.items():
        assert f"<td class=n>{name}</td><td>{count}</td>" in page
        assert f"  {name}: {count}\n" in shown
    show_reports([report], as_json=True)
    assert json.loads(capsys.readouterr().out)[0]["odd"] == ODD


def test_where_nothing_was_odd_nothing_is_said(
    folder: RunFolder, owner: JournalWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    report = make_report(folder, Jobs(folder.submission))
    assert set(report.odd.values()) == {0}
    show_reports([report], as_json=False)
    shown = capsys.readouterr().out
    assert not any(name in shown for name in ODD)
    assert "<h2>Out of the ordinary</h2>\n<p>Nothing.</p>" in folder.report.read_text(encoding="utf-8")


def strict(text: str) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_a_loss_that_is_no_number_is_null_in_json(
    folder: RunFolder, owner: JournalWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.metrics(1).write_text('{"step":1,"loss":NaN,"step_s":0.5}\n', encoding="utf-8")
    show_status(summarize_submission(folder.submission), as_json=True)
    (run,) = strict(capsys.readouterr().out)
    assert (run["step"], run["loss"]) == (1, None)


def test_numbers_that_json_does_not_have_are_null_wherever_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    write_json({"a": [float("inf"), 1.5], "b": ({"c": float("nan")}, 2), "d": None})
    assert strict(capsys.readouterr().out) == {"a": [None, 1.5], "b": [{"c": None}, 2], "d": None}
