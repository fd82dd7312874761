"""One owner for each run: the lowest claim that lives."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpc_resume.errors import RunBusyError
from hpc_resume.journal.claims import Liveness, is_replaced, open_claim, request_claim
from hpc_resume.journal.folder import RunFolder
from hpc_resume.journal.reader import read_journal
from hpc_resume.journal.writer import JournalWriter
from hpc_resume.recovery import events as ev

Requests = Callable[[int], ev.ClaimRequested]
Process = subprocess.Popen[str]


@contextmanager
def _supervisors(folder: RunFolder, count: int) -> Iterator[list[Process]]:
    """Start processes that stand ready to ask for the run; end them all."""
    command = [sys.executable, str(Path(__file__).parent / "races_for_a_claim.py"), str(folder.path)]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)
    ]
    try:
        assert [_line(process) for process in processes] == ["ready"] * count
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _line(process: Process) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _go(process: Process) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def _says(state: Liveness) -> Callable[[ev.ClaimRequested], Liveness]:
    return lambda _: state


def test_of_many_that_race_exactly_one_opens(folder: RunFolder) -> None:
    with _supervisors(folder, 6) as processes:
        for process in processes:
            _go(process)
        answers = [_line(process) for process in processes]
        assert sorted(answers) == ["opened 1", *["refused"] * 5]
        journal = read_journal(folder)
        assert [c.request.claim for c in journal.history.claims] == [1, 2, 3, 4, 5, 6]
        owner = processes[answers.index("opened 1")]
        assert journal.history.claims[0].request.pid == owner.pid
        assert [bool(c.opened) for c in journal.history.claims] == [True, *[False] * 5]
        assert not is_replaced(folder, 1)
        assert (journal.torn, journal.late) == (0, ())


def test_a_dead_owner_is_replaced_and_recorded_as_lost(folder: RunFolder) -> None:
    with _supervisors(folder, 3) as (first, second, third):
        _go(first)
        assert _line(first) == "opened 1"
        _go(second)
        assert _line(second) == "refused"
        first.kill()
        first.wait()
        _go(third)
        assert _line(third) == "opened 3"
        history = read_journal(folder).history
        assert history.claims[0].ended == ev.ClaimLost(claim=1, reason="ended without a word")
        assert isinstance(history.claims[1].ended, ev.ClaimRefused)
        assert history.claims[2].ended is None
        assert is_replaced(folder, 1)
        assert not is_replaced(folder, 3)


def test_the_first_claim_opens_with_what_is_committed(folder: RunFolder, request_of: Requests) -> None:
    number, writer, journal = open_claim(folder, request_of, _says("alive"), lambda: ["b", "a"])
    writer.close()
    assert number == 1
    assert [r.event for r in journal.records] == [request_of(1), ev.ClaimOpened(claim=1, committed=("b", "a"))]


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("alive", "supervisor 1 is alive: process 101 on node1 (job 7); `cancel` it first, or let it finish"),
        (
            "unknown",
            "supervisor 1 may be alive: process 101 on node1 (job 7) can't be asked from here; run this on "
            "node1, or, if you know that it is gone: `resubmit --owner-is-gone`",
        ),
    ],
)
def test_whoever_lives_or_may_live_keeps_the_run(
    folder: RunFolder, request_of: Requests, state: Liveness, words: str
) -> None:
    open_claim(folder, request_of, _says("dead"), list)[1].close()
    with pytest.raises(RunBusyError) as caught:
        open_claim(folder, request_of, _says(state), list)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    history = read_journal(folder).history
    assert history.claims[0].ended is None
    assert isinstance(history.claims[1].ended, ev.ClaimRefused)
    assert history.claims[1].ended.owner == 1


def _declare_gone(folder: RunFolder, claim: int) -> None:
    event = ev.ResubmitRequested(runs=(0,), after={}, cluster="local", gone={"0": claim, "1": 99})
    JournalWriter(folder.submission.operator(1), event).close()


def test_an_owner_that_a_person_knows_to_be_gone_is_replaced(folder: RunFolder, request_of: Requests) -> None:
    open_claim(folder, request_of, _says("dead"), list)[1].close()
    _declare_gone(folder, 1)
    number, writer, _ = open_claim(folder, request_of, _says("unknown"), list)
    writer.close()
    assert number == 2
    assert read_journal(folder).history.claims[0].ended == ev.ClaimLost(claim=1, reason="a person said that it is gone")


@pytest.mark.parametrize(
    ("state", "gone"), [("alive", 1), ("unknown", 0)], ids=["it is seen", "an older one was meant"]
)
def test_a_person_can_be_wrong_about_who_is_gone(
    folder: RunFolder, request_of: Requests, state: Liveness, gone: int
) -> None:
    open_claim(folder, request_of, _says("dead"), list)[1].close()
    _declare_gone(folder, gone)
    with pytest.raises(RunBusyError):
        open_claim(folder, request_of, _says(state), list)


def test_a_refused_claim_voids_nothing(
    folder: RunFolder, request_of: Requests, checkpoint_at: Callable[[int, int], ev.Checkpoint]
) -> None:
    _, writer, _ = open_claim(folder, request_of, _says("alive"), list)
    with pytest.raises(RunBusyError):
        open_claim(folder, request_of, _says("alive"), list)
    assert not is_replaced(folder, 1)
    writer.record(ev.CheckpointAdopted(checkpoint=checkpoint_at(10, 1)))
    writer.close()
    journal = read_journal(folder)
    assert journal.late == ()
    assert journal.history.lineage == (checkpoint_at(10, 1),)


def test_what_the_old_owner_records_after_its_successor_opened_is_late(
    folder: RunFolder, request_of: Requests, checkpoint_at: Callable[[int, int], ev.Checkpoint]
) -> None:
    _, old, _ = open_claim(folder, request_of, _says("dead"), list)
    old.record(ev.CheckpointAdopted(checkpoint=checkpoint_at(10, 1)))
    committed = [checkpoint_at(10, 1).name]
    _, new, journal = open_claim(folder, request_of, _says("dead"), lambda: committed)
    assert journal.history.lineage == (checkpoint_at(10, 1),)
    assert is_replaced(folder, 1)
    old.record(ev.CheckpointAdopted(checkpoint=checkpoint_at(20, 2)))
    old.close()
    new.close()
    journal = read_journal(folder)
    assert [r.event for r in journal.late] == [ev.CheckpointAdopted(checkpoint=checkpoint_at(20, 2))]
    assert journal.history.lineage == (checkpoint_at(10, 1),)


def test_a_claim_that_ended_is_not_asked_about(folder: RunFolder, request_of: Requests) -> None:
    _, writer, _ = open_claim(folder, request_of, _says("alive"), list)
    writer.record(ev.ClaimEnded(claim=1, outcome="requeued", message=""))
    writer.close()
    number, writer, journal = open_claim(folder, request_of, _says("alive"), list)
    writer.close()
    assert number == 2
    assert journal.history.claims[0].ended == ev.ClaimEnded(claim=1, outcome="requeued", message="")


def test_a_younger_claim_is_not_asked_about(folder: RunFolder, request_of: Requests) -> None:
    JournalWriter(folder.claim(2), request_of(2)).close()
    asked: list[int] = []

    def request(number: int) -> ev.ClaimRequested:
        # Somebody asks between our claim and our look at the journal.
        JournalWriter(folder.claim(number + 1), request_of(number + 1)).close()
        return request_of(number)

    def liveness(owner: ev.ClaimRequested) -> Liveness:
        asked.append(owner.claim)
        return "dead"

    number, writer, _ = open_claim(folder, request, liveness, list)
    writer.close()
    assert (number, asked) == (3, [2])
    assert read_journal(folder).history.claims[-1].ended is None


def test_a_number_that_somebody_else_took_first_is_passed_over(folder: RunFolder, request_of: Requests) -> None:
    def request(number: int) -> ev.ClaimRequested:
        if number == 1:
            JournalWriter(folder.claim(1), request_of(1)).close()
        return request_of(number)

    number, writer = request_claim(folder, request)
    writer.close()
    assert number == 2
    assert [c.request.claim for c in read_journal(folder).history.claims] == [1, 2]


@pytest.mark.parametrize("content", [b"", b'{"seq":1,"ti'], ids=["empty", "torn"])
def test_a_claim_file_without_a_claim_breaks_nothing(folder: RunFolder, request_of: Requests, content: bytes) -> None:
    folder.claim(1).write_bytes(content)
    number, writer, journal = open_claim(folder, request_of, _says("alive"), list)
    writer.close()
    assert number == 2
    assert [c.request.claim for c in journal.history.claims] == [2]
    assert not is_replaced(folder, 2)
