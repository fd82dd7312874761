"""All files of a journal in one order, on which every reader agrees, and nothing that comes too late."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc_resume.errors import JournalError
from hpc_resume.journal.codec import encode
from hpc_resume.journal.folder import RunFolder
from hpc_resume.journal.reader import numbers, read_journal, read_operator
from hpc_resume.recovery import events as ev

Requests = Callable[[int], ev.ClaimRequested]
Checkpoints = Callable[[int, int], ev.Checkpoint]
Line = tuple[ev.Event, dict[str, int]]


def _write(path: Path, lines: Sequence[Line], *, clock: float = 1000.0, tick: float = 1.0) -> None:
    text = ""
    for index, (event, seen) in enumerate(lines):
        data = {"seq": index + 1, "time": clock + tick * index, "seen": seen, "event": encode(event)}
        text += json.dumps(data) + "\n"
    path.write_text(text, encoding="utf-8")


def _said(message: str, **seen: int) -> Line:
    return ev.Disagreement(message=message), {name.replace("_", "-"): count for name, count in seen.items()}


def _order(folder: RunFolder) -> list[str]:
    return [r.event.message for r in read_journal(folder).records if isinstance(r.event, ev.Disagreement)]


def test_an_empty_folder_is_an_empty_journal(folder: RunFolder) -> None:
    journal = read_journal(folder)
    assert (journal.records, journal.late, journal.torn, journal.counts) == ((), (), 0, {})
    assert journal.history.claims == ()


def test_a_record_comes_after_all_that_its_writer_had_seen(folder: RunFolder) -> None:
    _write(folder.claim(1), [_said("a"), _said("b"), _said("f", attempt_0001=3), _said("g")])
    _write(folder.attempt(1), [_said("c", claim_0001=2), _said("d"), _said("e"), _said("h", claim_0001=4)])
    assert _order(folder) == list("abcdefgh")


@pytest.mark.parametrize(("claim_clock", "attempt_clock"), [(1000, 5), (5, 1000)], ids=["late", "early"])
@pytest.mark.parametrize("tick", [1, -1], ids=["forwards", "backwards"])
def test_clocks_have_no_say_in_the_order(
    folder: RunFolder, claim_clock: float, attempt_clock: float, tick: float
) -> None:
    _write(folder.claim(1), [_said("a"), _said("c", attempt_0001=1)], clock=claim_clock, tick=tick)
    _write(folder.attempt(1), [_said("b", claim_0001=1), _said("d", claim_0001=2)], clock=attempt_clock, tick=tick)
    assert _order(folder) == list("abcd")


def test_the_order_does_not_depend_on_the_names_alone(folder: RunFolder) -> None:
    _write(folder.claim(2), [_said("d", claim_0001=1, attempt_0001=2)])
    _write(folder.claim(1), [_said("a"), _said("e", claim_0002=1)])
    _write(folder.attempt(1), [_said("b", claim_0001=1), _said("c")])
    assert _order(folder) == list("abcde")


def test_numbers_count_as_numbers(folder: RunFolder) -> None:
    for number in (10000, 9999, 2):
        _write(folder.claim(number), [_said(str(number))])
    assert _order(folder) == ["2", "9999", "10000"]
    assert numbers(folder.journal, "claim") == [2, 9999, 10000]


def test_what_is_no_journal_file_is_left_alone(folder: RunFolder) -> None:
    _write(folder.claim(1), [_said("a")])
    for name in ("claim-0002.jsonl.bak", ".claim-0002.jsonl.77.1", "notes-0001.jsonl", "claim-x.jsonl"):
        (folder.journal / name).write_text("not ours\n", encoding="utf-8")
    journal = read_journal(folder)
    assert (journal.counts, journal.torn) == ({"claim-0001": 1}, 0)


def test_the_operators_records_are_part_of_every_run(folder: RunFolder) -> None:
    _write(folder.submission.operator(1), [(ev.CancelRequested(runs=(0,)), {})])
    other = folder.submission.run(1)
    other.journal.mkdir(parents=True)
    assert read_journal(folder).history.cancelled
    assert not read_journal(other).history.cancelled
    assert [r.event for r in read_operator(folder.submission)] == [ev.CancelRequested(runs=(0,))]


@pytest.mark.parametrize("cut", [1, 20, -2])
def test_a_torn_last_line_is_counted_and_the_rest_read(folder: RunFolder, cut: int) -> None:
    _write(folder.claim(1), [_said("a"), _said("b"), _said("c")])
    lines = folder.claim(1).read_bytes().splitlines(keepends=True)
    folder.claim(1).write_bytes(b"".join(lines[:2]) + lines[2][:cut])
    assert _order(folder) == ["a", "b"]
    journal = read_journal(folder)
    assert (journal.torn, journal.counts) == (1, {"claim-0001": 2})


def test_a_line_that_lacks_only_its_newline_is_whole(folder: RunFolder) -> None:
    _write(folder.claim(1), [_said("a"), _said("b")])
    folder.claim(1).write_bytes(folder.claim(1).read_bytes()[:-1])
    assert _order(folder) == ["a", "b"]
    assert read_journal(folder).torn == 0


@pytest.mark.parametrize("rest", [b"\0" * 50, b"\xff\xfe{", b"[]", b"7", b'{"seq": 3}'], ids=repr)
def test_what_a_dying_disk_left_at_the_end_is_counted(folder: RunFolder, rest: bytes) -> None:
    _write(folder.claim(1), [_said("a"), _said("b")])
    folder.claim(1).write_bytes(folder.claim(1).read_bytes() + rest)
    assert _order(folder) == ["a", "b"]
    assert read_journal(folder).torn == 1


def test_torn_lines_of_all_files_are_counted(folder: RunFolder) -> None:
    for path in (folder.claim(1), folder.attempt(1), folder.submission.operator(1)):
        path.write_bytes(b'{"seq"')
    assert read_journal(folder).torn == 3


def test_an_empty_file_breaks_nothing(folder: RunFolder, request_of: Requests) -> None:
    folder.claim(1).touch()
    folder.attempt(1).touch()
    _write(folder.claim(2), [(request_of(2), {"claim-0001": 0}), (ev.ClaimOpened(claim=2, committed=()), {})])
    journal = read_journal(folder)
    assert [c.request.claim for c in journal.history.claims] == [2]
    assert journal.counts == {"claim-0001": 0, "attempt-0001": 0, "claim-0002": 2}


def test_a_known_record_that_lacks_a_field_is_not_passed_over(folder: RunFolder) -> None:
    data = {"seq": 1, "time": 1.0, "seen": {}, "event": {"kind": "step_skipped", "attempt": 1}}
    folder.attempt(1).write_text(json.dumps(data) + "\n", encoding="utf-8")
    with pytest.raises(JournalError, match="a step_skipped record"):
        read_journal(folder)


def test_a_record_of_an_unknown_kind_is_kept_in_its_place(folder: RunFolder) -> None:
    stranger = ev.Unknown(kind="weather_changed", data={"to": "rain"})
    _write(folder.claim(1), [_said("a"), (stranger, {}), _said("b")])
    journal = read_journal(folder)
    assert [r.event for r in journal.records] == [ev.Disagreement(message="a"), stranger, ev.Disagreement(message="b")]
    assert journal.torn == 0


def test_of_two_records_with_one_number_the_later_counts(folder: RunFolder) -> None:
    _write(folder.claim(1), [_said("a"), _said("refused, but on the disk all the same")])
    text = folder.claim(1).read_text(encoding="utf-8")
    again = {"seq": 2, "time": 1.0, "seen": {}, "event": encode(ev.Disagreement(message="b"))}
    folder.claim(1).write_text(f"{text}\n{json.dumps(again)}\n", encoding="utf-8")
    assert _order(folder) == ["a", "b"]
    assert read_journal(folder).counts == {"claim-0001": 2}


def test_a_record_holds_only_what_is_new_so_that_many_claims_with_many_records_stay_cheap(
    folder: RunFolder, request_of: Requests
) -> None:
    claims, steps = 20, 30
    known: dict[str, int] = {}
    for claim in range(1, claims + 1):
        opened = ev.ClaimOpened(claim=claim, committed=())
        started = ev.AttemptStarted(attempt=claim, claim=claim, data_seed=0, host="node1")
        _write(folder.claim(claim), [(request_of(claim), {}), (opened, dict(known)), (started, {})])
        known[f"claim-{claim:04d}"] = 3
        skipped = [(ev.StepSkipped(attempt=claim, step=step), {}) for step in range(1, steps)]
        ready = ev.WorkersReady(attempt=claim, world_size=1, num_samples=1)
        _write(folder.attempt(claim), [(ready, dict(known)), *skipped])
        known[f"attempt-{claim:04d}"] = steps
    journal = read_journal(folder)
    assert len(journal.records) == claims * (3 + steps)
    assert journal.late == ()
    # Two records of each claim name all files that were there; the others name none.
    assert sum(len(record.seen) for record in journal.records) == sum(4 * n + 1 for n in range(claims))


def _two_claims(folder: RunFolder, request_of: Requests, checkpoint_at: Checkpoints) -> tuple[ev.Checkpoint, ...]:
    """Write a claim whose attempt saved twice, and its successor, that saw all of it but the second save."""
    first, second = checkpoint_at(10, 1), checkpoint_at(20, 2)
    _write(
        folder.claim(1),
        [
            (request_of(1), {}),
            (ev.ClaimOpened(claim=1, committed=()), {}),
            (ev.AttemptStarted(attempt=1, claim=1, data_seed=0, host="node1"), {}),
            (ev.Disagreement(message="late word of the supervisor"), {}),
        ],
    )
    _write(
        folder.attempt(1),
        [
            (ev.WorkersReady(attempt=1, world_size=1, num_samples=100), {"claim-0001": 3}),
            (ev.CheckpointCommitted(attempt=1, checkpoint=first), {}),
            (ev.CheckpointCommitted(attempt=1, checkpoint=second), {}),
            (
                ev.LossIncident(
                    attempt=1, detector="spike", onset_step=25, onset_position=192, step=26, position=208, message=""
                ),
                {},
            ),
        ],
    )
    _write(
        folder.claim(2),
        [
            (request_of(2), {}),
            (ev.ClaimOpened(claim=2, committed=(first.name,)), {"claim-0001": 3, "attempt-0001": 2}),
            (ev.ClaimLost(claim=1, reason="ended without a word"), {}),
        ],
    )
    return first, second


def test_what_a_replaced_claim_writes_late_has_no_effect(
    folder: RunFolder, request_of: Requests, checkpoint_at: Checkpoints
) -> None:
    first, second = _two_claims(folder, request_of, checkpoint_at)
    journal = read_journal(folder)
    assert {(r.file, r.seq) for r in journal.late} == {("claim-0001", 4), ("attempt-0001", 3), ("attempt-0001", 4)}
    assert journal.history.lineage == (first,)
    assert second.name not in journal.history.known
    assert journal.history.disagreements == ()
    assert journal.history.undecided is None
    assert [r.event for r in journal.records if r.file == "attempt-0001"][-1] == ev.CheckpointCommitted(
        attempt=1, checkpoint=first
    )


def test_late_records_are_still_counted_as_read(
    folder: RunFolder, request_of: Requests, checkpoint_at: Checkpoints
) -> None:
    _two_claims(folder, request_of, checkpoint_at)
    assert read_journal(folder).counts == {"claim-0001": 4, "attempt-0001": 4, "claim-0002": 3}


def test_whoever_saw_the_late_records_later_does_not_bring_them_back(
    folder: RunFolder, request_of: Requests, checkpoint_at: Checkpoints
) -> None:
    first, second = _two_claims(folder, request_of, checkpoint_at)
    seen = {"claim-0001": 4, "attempt-0001": 4, "claim-0002": 3}
    _write(
        folder.claim(3),
        [(request_of(3), {}), (ev.ClaimOpened(claim=3, committed=(first.name, second.name)), seen)],
    )
    journal = read_journal(folder)
    assert len(journal.late) == 3
    assert journal.history.lineage == (first,)


def test_a_claim_that_only_asked_makes_nothing_late(
    folder: RunFolder, request_of: Requests, checkpoint_at: Checkpoints
) -> None:
    first, second = _two_claims(folder, request_of, checkpoint_at)
    _write(
        folder.claim(2),
        [
            (request_of(2), {}),
            (ev.ClaimRefused(claim=2, owner=1, reason="alive"), {"claim-0001": 3, "attempt-0001": 2}),
        ],
    )
    journal = read_journal(folder)
    assert journal.late == ()
    assert journal.history.lineage == (first, second)


def test_an_attempt_that_a_zombie_starts_late_is_late_with_all_its_records(
    folder: RunFolder, request_of: Requests
) -> None:
    _write(
        folder.claim(1),
        [
            (request_of(1), {}),
            (ev.ClaimOpened(claim=1, committed=()), {}),
            (ev.AttemptStarted(attempt=1, claim=1, data_seed=0, host="node1"), {"claim-0002": 2}),
        ],
    )
    _write(folder.attempt(1), [(ev.StepSkipped(attempt=1, step=1), {"claim-0001": 3})])
    _write(folder.claim(2), [(request_of(2), {}), (ev.ClaimOpened(claim=2, committed=()), {"claim-0001": 2})])
    journal = read_journal(folder)
    assert len(journal.late) == 2
    assert journal.history.attempts == ()
    assert journal.history.skipped_steps == 0


@pytest.mark.parametrize("written_first", [1, 2])
def test_an_attempt_number_that_a_zombie_took_too_belongs_to_the_newer_claim(
    folder: RunFolder, request_of: Requests, written_first: int
) -> None:
    def start(claim: int, opened: dict[str, int]) -> list[Line]:
        return [
            (request_of(claim), {}),
            (ev.ClaimOpened(claim=claim, committed=()), opened),
            (ev.AttemptStarted(attempt=1, claim=claim, data_seed=0, host=f"node{claim}"), {}),
        ]

    files = {1: start(1, {}), 2: start(2, {"claim-0001": 2})}
    for claim in (written_first, 3 - written_first):
        _write(folder.claim(claim), files[claim])
    _write(folder.attempt(1), [(ev.StepSkipped(attempt=1, step=1), {"claim-0002": 3})])
    journal = read_journal(folder)
    assert [r.file for r in journal.late] == ["claim-0001"]
    assert [a.started.host for a in journal.history.attempts] == ["node2"]
    assert journal.history.skipped_steps == 1


@given(data=st.data(), writers=st.integers(1, 5), length=st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_any_order_of_writing_is_read_in_an_order_that_could_have_been(
    data: st.DataObject, writers: int, length: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = RunFolder(tmp_path_factory.mktemp("drawn") / "run-0000")
    folder.journal.mkdir(parents=True)
    paths = {f"claim-{n:04d}": folder.claim(n) for n in range(1, 3)}
    paths |= {f"attempt-{n:04d}": folder.attempt(n) for n in range(1, 4)}
    names = sorted(paths)[:writers]
    lines: dict[str, list[Line]] = {name: [] for name in names}
    for index in range(length):
        name = data.draw(st.sampled_from(names))
        knows = data.draw(st.sets(st.sampled_from(names)))
        seen = {other: len(lines[other]) for other in knows if other != name}
        lines[name].append((ev.Disagreement(message=f"{index}"), seen))
    clock = random.Random(length)
    for name in names:
        _write(paths[name], lines[name], clock=clock.uniform(0, 1e6), tick=clock.uniform(-5, 5))
    records = read_journal(folder).records
    assert len(records) == length
    read: dict[str, int] = dict.fromkeys(names, 0)
    for record in records:
        assert record.seq == read[record.file] + 1
        assert all(read[other] >= count for other, count in record.seen.items())
        read[record.file] += 1
