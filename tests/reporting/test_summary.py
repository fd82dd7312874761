"""Where a run stands, and what it costs to ask."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest

from hpc_resume.config.schema import RunConfig
from hpc_resume.journal import reader
from hpc_resume.journal.folder import RunFolder
from hpc_resume.journal.reader import read_journal
from hpc_resume.journal.writer import JournalWriter
from hpc_resume.recovery import events as ev
from hpc_resume.recovery.decisions import Decision, Plan
from hpc_resume.reporting import follow
from hpc_resume.reporting.jobs import Jobs
from hpc_resume.reporting.summary import state_of, summarize

Requests = Callable[..., ev.ClaimRequested]


def state(folder: RunFolder) -> str:
    history, jobs = read_journal(folder).history, Jobs(folder.submission)
    return state_of(history, jobs, jobs.of(folder.index, history))


def test_a_claim_that_was_killed_before_it_could_refuse_does_not_hide_the_owner(
    folder: RunFolder, owner: JournalWriter, request_of: Requests
) -> None:
    assert state(folder) == "running"
    JournalWriter(folder.claim(2), request_of(2, alive=False)).close()
    assert state(folder) == "running"


def test_without_any_claim_that_lives_the_run_is_lost(folder: RunFolder, request_of: Requests) -> None:
    for claim in (1, 2):
        JournalWriter(folder.claim(claim), request_of(claim, alive=False)).close()
    assert state(folder) == "lost"


def test_an_owner_that_has_left_does_not_count_however_alive_its_process_is(
    folder: RunFolder, owner: JournalWriter, request_of: Requests
) -> None:
    owner.record(ev.ClaimEnded(claim=1, outcome="requeued", message=""))
    assert state(folder) == "lost"


def test_a_million_steps_cost_as_little_as_a_few(folder: RunFolder, owner: JournalWriter, config: RunConfig) -> None:
    row = '{{"step":{},"branch":0,"order":0,"loss":2.5,"grad_norm":1.0,"lr":0.0003,"samples":1,"step_s":0.5}}\n'
    with folder.metrics(1).open("w", encoding="utf-8") as file:
        # Only the last of them are real; in place of the others lies as much space.
        file.seek(1_000_000 * len(row.format(1_000_000)))
        file.write("\n" + "".join(row.format(step) for step in range(999_900, 1_000_000)))
    journal, jobs = read_journal(folder), Jobs(folder.submission)
    tracemalloc.start()
    summary = summarize(folder, config, journal, jobs)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (summary.step, summary.loss) == (999_999, 2.5)
    assert peak < 2**20


def test_a_run_that_goes_back_stands_at_the_step_that_it_goes_back_to(
    folder: RunFolder, owner: JournalWriter, config: RunConfig
) -> None:
    rows = "".join(f'{{"step":{step},"loss":{step / 10},"step_s":0.5}}\n' for step in range(1, 50))
    folder.metrics(1).write_text(rows, encoding="utf-8")
    plan = Plan(checkpoint="some", step=20, position=20, branch=0)
    owner.record(ev.Decided(decision=Decision(number=2, action="requeue", rule="crash", reason="", plan=plan)))
    journal, jobs = read_journal(folder), Jobs(folder.submission)
    summary = summarize(folder, config, journal, jobs)
    assert (summary.step, summary.loss) == (20, 2.0)


def test_following_reads_the_settings_once_and_each_journal_once_a_look(
    folder: RunFolder, owner: JournalWriter, config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    load, read = follow.load_config, reader.read_journal

    def counted_load(*arguments: object) -> RunConfig:
        calls.append("settings")
        return load(*arguments)  # type: ignore[arg-type]

    def counted_read(run: RunFolder) -> reader.Journal:
        calls.append("journal")
        return read(run)

    def wait(seconds: float) -> None:
        calls.append("wait")
        if calls.count("wait") == 3:
            owner.record(ev.ClaimEnded(claim=1, outcome="requeued", message=""))

    monkeypatch.setattr(follow, "load_config", counted_load)
    monkeypatch.setattr(follow, "read_journal", counted_read)
    monkeypatch.setattr("hpc_resume.reporting.summary.read_journal", counted_read)
    monkeypatch.setattr("hpc_resume.config.load.load_config", counted_load)
    monkeypatch.setattr("time.sleep", wait)
    (summary,) = follow.follow(folder.submission, config, "", [0], quiet=True)
    assert summary.state == "lost"
    assert calls == ["settings", *["journal", "wait"] * 3, "journal"]
