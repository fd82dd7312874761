"""Checkpoints as folders and files: which count, which are whole, which are set aside."""

from __future__ import annotations

import errno
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_resume.checkpoints import catalog
from hpc_resume.checkpoints.catalog import (
    MANIFEST,
    SCHEMA,
    FileEntry,
    Manifest,
    _digest_of,
    checkpoint_name,
    digest_file,
    discard,
    discard_uncommitted,
    empty_trash,
    find_damage,
    find_foreign,
    finish_deletions,
    list_committed,
    next_save_number,
    owned_by,
    put_conversion_in_trash,
    put_in_trash,
    read_manifest,
    set_aside,
)
from hpc_resume.errors import MismatchError
from hpc_resume.recovery.events import Checkpoint

FILES = {
    "mp_rank_00_model_states.pt": b"weights" * 500,
    "zero_pp_rank_0_mp_rank_00_optim_states.pt": b"momentum 0" * 300,
    "zero_pp_rank_1_mp_rank_00_optim_states.pt": b"momentum 1" * 300,
    "rank-0000.pt": b"random state 0",
    "rank-0001.pt": b"random state 1",
}
RANK_1 = ["zero_pp_rank_1_mp_rank_00_optim_states.pt", "rank-0001.pt"]
STEP, SAVE = 20, 2
NAME = checkpoint_name(STEP, SAVE)


def _manifest(name: str = NAME, **fields: Any) -> Manifest:
    checkpoint = Checkpoint(name=name, step=STEP, position=160, branch=1, save_number=SAVE, parent=None)
    values: dict[str, Any] = {
        "schema": SCHEMA,
        "checkpoint": checkpoint,
        "claim": 1,
        "attempt": 3,
        "world_size": 2,
        "zero_stage": 2,
        "precision": "bf16",
        "model": "0123456789abcdef",
        "parameters": 100,
        "num_samples": 100,
        "segments": [[80, 2, None]],
        "versions": {"torch": "2.8.0"},
    }
    return Manifest(**{**values, **fields})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of checkpoints with one in it, committed and whole."""
    path = tmp_path / "checkpoints" / NAME
    path.mkdir(parents=True)
    for name, content in FILES.items():
        (path / name).write_bytes(content)
    files = {name: digest_file(path / name) for name in FILES}
    (path / MANIFEST).write_text(_manifest(files=files).to_json(), encoding="utf-8")
    return path.parent


def _torn(folder: Path, name: str) -> None:
    """Write a checkpoint whose rank 0 was killed before the commit."""
    (folder / name).mkdir(parents=True)
    (folder / name / f".{MANIFEST}.tmp").write_text(_manifest(name).to_json(), encoding="utf-8")


def _committed(folder: Path, name: str) -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / MANIFEST).write_text(_manifest(name).to_json(), encoding="utf-8")


def test_a_name_tells_step_and_save_number() -> None:
    assert checkpoint_name(12000, 47) == "step-000012000.s000047"


@given(step=st.integers(0, 10**9 - 2), number=st.integers(1, 10**6 - 1))
def test_names_sort_by_step(step: int, number: int) -> None:
    assert checkpoint_name(step, number) < checkpoint_name(step + 1, 1)
    assert len(checkpoint_name(step, number)) == len(NAME)


def test_the_first_save_is_number_one(tmp_path: Path) -> None:
    assert next_save_number(tmp_path) == 1


def test_a_save_number_is_never_used_again(folder: Path) -> None:
    assert next_save_number(folder) == 3
    _torn(folder, checkpoint_name(30, 3))
    assert next_save_number(folder) == 4
    _committed(folder, checkpoint_name(10, 4))
    set_aside(folder, checkpoint_name(10, 4))
    assert next_save_number(folder) == 5
    set_aside(folder, NAME)
    assert next_save_number(folder) == 5


def test_the_highest_number_counts_not_the_highest_step(tmp_path: Path) -> None:
    _committed(tmp_path, checkpoint_name(900, 7))
    _committed(tmp_path, checkpoint_name(100, 12))
    assert next_save_number(tmp_path) == 13


def test_a_recorded_checkpoint_that_vanished_keeps_its_number(folder: Path, tmp_path: Path) -> None:
    assert next_save_number(folder, [checkpoint_name(30, 7), "renamed by hand"]) == 8
    assert next_save_number(folder, [checkpoint_name(30, 1)]) == 3
    assert next_save_number(tmp_path, [checkpoint_name(30, 7)]) == 8


@pytest.mark.parametrize(
    "name", ["latest", "step-20", "step-000000020.s000099.tmp", "quarantined", "x.step-000000020.s000099"]
)
def test_what_is_no_checkpoint_has_no_number_and_is_not_listed(folder: Path, name: str) -> None:
    (folder / name).mkdir()
    (folder / name / MANIFEST).touch()
    assert next_save_number(folder) == 3
    assert list_committed(folder) == [NAME]


def test_only_a_manifest_makes_a_checkpoint(folder: Path) -> None:
    _torn(folder, checkpoint_name(30, 3))
    (folder / checkpoint_name(40, 4)).mkdir()
    assert list_committed(folder) == [NAME]


def test_committed_checkpoints_are_listed_by_save_number(folder: Path) -> None:
    _committed(folder, checkpoint_name(10, 3))
    _committed(folder, checkpoint_name(30, 1))
    assert list_committed(folder) == [checkpoint_name(30, 1), NAME, checkpoint_name(10, 3)]


def test_nothing_is_committed_where_nothing_is(tmp_path: Path) -> None:
    assert list_committed(tmp_path) == []
    with pytest.raises(FileNotFoundError):
        list_committed(tmp_path / "nowhere")


def test_a_manifest_survives_the_disk(folder: Path) -> None:
    manifest = read_manifest(folder, NAME)
    assert manifest == _manifest(files={name: digest_file(folder / NAME / name) for name in FILES})
    assert Manifest.from_json(manifest.to_json()) == manifest


def _changed(**fields: Any) -> str:
    """Return the text of a manifest that some other program wrote, digest included."""
    data = {**json.loads(_manifest().to_json()), **fields}
    del data["digest"]
    return json.dumps({**data, "digest": _digest_of(data)})


UNREADABLE = {
    "empty": ("", "Expecting value"),
    "cut off": (_manifest().to_json()[:-30], "Expecting property name"),
    "zeros": ("\0" * 100, "Expecting value"),
    "no object": ("[]", "not a manifest"),
    "no schema": (json.dumps({"claim": 1}), "not a manifest"),
    "no digest": (json.dumps({"schema": SCHEMA, "checkpoint": None}), "has changed since it was saved"),
    "one bit of a number": (_manifest().to_json().replace("160", "164"), "has changed since it was saved"),
    "one bit of its schema": (_manifest().to_json().replace('"schema": 2', '"schema": 3'), "has changed"),
    "a field too many": (_changed(colour="green"), "not a manifest: .*colour"),
    "no checkpoint": (_changed(checkpoint=None), "not a manifest: "),
    "half a checkpoint": (_changed(checkpoint={"name": NAME}), "not a manifest: .*step"),
    "half a file": (_changed(files={"rank-0000.pt": {"size": 3}}), "not a manifest: .*digest"),
    "files are a list": (_changed(files=["rank-0000.pt"]), "not a manifest: "),
    "another's": (_manifest(checkpoint_name(10, 1)).to_json(), r"its manifest is that of step-000000010\.s000001"),
}


@pytest.mark.parametrize(("text", "match"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_manifest_that_cannot_be_trusted_is_refused(folder: Path, text: str, match: str) -> None:
    (folder / NAME / MANIFEST).write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=match):
        read_manifest(folder, NAME)


@pytest.mark.parametrize(
    "text",
    [json.dumps({"schema": 1, "checkpoint": {}, "versions": {"hpc_resume": "0.1"}}), _changed(schema=3)],
    ids=["older", "newer"],
)
def test_a_manifest_of_another_version_is_not_taken_for_damage(folder: Path, text: str) -> None:
    (folder / NAME / MANIFEST).write_text(text, encoding="utf-8")
    with pytest.raises(MismatchError, match=r"has schema [13] .* reads schema 2"):
        read_manifest(folder, NAME)


def test_a_manifest_of_no_text_at_all_is_refused(folder: Path) -> None:
    (folder / NAME / MANIFEST).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="codec"):
        read_manifest(folder, NAME)


def test_a_manifest_that_is_not_there_is_refused(folder: Path) -> None:
    (folder / NAME / MANIFEST).unlink()
    with pytest.raises(ValueError, match="its manifest is missing"):
        read_manifest(folder, NAME)


def test_a_digest_is_that_of_the_content(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    (tmp_path / "b").write_bytes(b"x" * ((1 << 20) + 3))
    (tmp_path / "c").write_bytes(b"x" * ((1 << 20) + 3))
    # The published digest of nothing, XXH3 with 128 bits.
    assert digest_file(tmp_path / "a") == FileEntry(size=0, digest="99aa06d3014798d86001c324468d497f")
    assert digest_file(tmp_path / "b") == digest_file(tmp_path / "c")
    assert digest_file(tmp_path / "b").size == (1 << 20) + 3


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _append(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def _replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES = {
    "truncated": (_truncate, "has {less} bytes; its manifest says {size}"),
    "zero length": (_empty, "has 0 bytes; its manifest says {size}"),
    "missing": (Path.unlink, "is missing"),
    "a flipped bit": (_flip_a_bit, "has changed since it was saved"),
    "too long": (_append, "has {more} bytes; its manifest says {size}"),
}


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize(("damage", "words"), DAMAGES.values(), ids=DAMAGES)
def test_damage_is_found_and_named(folder: Path, file: str, damage: Any, words: str) -> None:
    manifest = read_manifest(folder, NAME)
    assert find_damage(folder, manifest) is None
    size = len(FILES[file])
    damage(folder / NAME / file)
    found = find_damage(folder, manifest)
    assert found is not None
    assert found.startswith(file)
    assert words.format(size=size, less=size - 1, more=size + 1) in found
    assert "\n" not in found


@pytest.mark.parametrize("file", FILES)
def test_a_rank_looks_only_at_its_own_files(folder: Path, file: str) -> None:
    manifest = read_manifest(folder, NAME)
    _flip_a_bit(folder / NAME / file)
    owner = 1 if file in RANK_1 else 0
    assert find_damage(folder, manifest, rank=1 - owner) is None
    found = find_damage(folder, manifest, rank=owner)
    assert found is not None
    assert found.startswith(file)


def test_a_file_that_the_manifest_does_not_name_is_no_damage(folder: Path) -> None:
    (folder / NAME / "notes.txt").write_text("hello", encoding="utf-8")
    manifest = read_manifest(folder, NAME)
    assert find_damage(folder, manifest) is None
    assert find_foreign(folder, manifest) == ["notes.txt"]


def test_a_file_that_deepspeed_could_take_for_its_own_is_damage_that_rank_0_sees(folder: Path) -> None:
    (folder / NAME / "mp_rank_01_model_states.pt").write_bytes(b"")
    manifest = read_manifest(folder, NAME)
    assert "mp_rank_01_model_states.pt is not in its manifest" in str(find_damage(folder, manifest, rank=0))
    assert find_damage(folder, manifest, rank=1) is None


def test_a_quick_look_sees_a_wrong_size_and_no_wrong_byte(folder: Path) -> None:
    manifest = read_manifest(folder, NAME)
    path = folder / NAME / RANK_1[0]
    path.write_bytes(b"x" * len(FILES[RANK_1[0]]))
    assert find_damage(folder, manifest, quick=True) is None
    assert find_damage(folder, manifest) is not None
    path.write_bytes(b"x")
    assert "has 1 bytes" in str(find_damage(folder, manifest, quick=True))


@pytest.mark.parametrize(
    ("file", "rank"),
    [
        ("bf16_zero_pp_rank_12_mp_rank_00_optim_states.pt", 12),
        ("zero_pp_rank_0_mp_rank_00_model_states.pt", 0),
        ("rank-0103.pt", 103),
        ("mp_rank_00_model_states.pt", 0),
        ("zero_to_fp32.py", 0),
        ("my-rank-0003.pt", 0),
    ],
)
def test_every_file_has_exactly_one_owner(file: str, rank: int) -> None:
    assert [r for r in range(200) if owned_by(file, r)] == [rank]


def test_what_is_set_aside_keeps_its_content_under_a_name_that_nobody_loads(folder: Path) -> None:
    assert set_aside(folder, NAME)
    assert list_committed(folder) == []
    assert not (folder / NAME).exists()
    aside = folder / f"quarantined.{NAME}"
    assert {path.name for path in aside.iterdir()} == {*FILES, MANIFEST}


def test_to_set_aside_twice_does_no_harm(folder: Path) -> None:
    assert set_aside(folder, NAME)
    assert not set_aside(folder, NAME)
    assert [path.name for path in folder.iterdir()] == [f"quarantined.{NAME}"]


def test_to_set_aside_what_never_was_does_no_harm(folder: Path) -> None:
    assert not set_aside(folder, checkpoint_name(99, 9))
    assert list_committed(folder) == [NAME]


@pytest.mark.parametrize("file", FILES)
def test_a_file_that_cannot_be_read_is_an_error_and_no_damage(folder: Path, file: str) -> None:
    _replace_by_folder(folder / NAME / file)
    with pytest.raises(IsADirectoryError):
        find_damage(folder, read_manifest(folder, NAME))


def test_what_was_never_committed_is_deleted_and_its_number_is_not_used_again(folder: Path) -> None:
    before = list_committed(folder)
    torn = checkpoint_name(40, 8)
    _torn(folder, torn)
    assert discard_uncommitted(folder) == [torn]
    assert not (folder / torn).exists()
    assert list_committed(folder) == before
    assert next_save_number(folder) == 9
    assert discard_uncommitted(folder) == []


def test_a_recorded_checkpoint_is_not_deleted_whatever_became_of_its_manifest(folder: Path) -> None:
    name = list_committed(folder)[0]
    (folder / name / MANIFEST).unlink()
    assert discard_uncommitted(folder, known=[name]) == []
    assert (folder / name).is_dir()


def test_a_commit_between_the_look_and_the_deletion_is_given_back(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = list_committed(folder)[0]
    # The first look comes too early, as if the manifest had been renamed into place a moment later.
    monkeypatch.setattr(catalog, "is_committed", lambda _folder, _name: False)
    assert not discard(folder, name)
    assert name in list_committed(folder)


def test_a_deletion_that_was_killed_is_finished_the_next_time(folder: Path) -> None:
    torn = checkpoint_name(40, 8)
    left = folder / f".torn.{torn}"
    left.mkdir()
    (left / "shard.pt").write_bytes(b"x")
    _torn(folder, torn)
    assert discard_uncommitted(folder) == [torn]
    assert list(left.iterdir()) == []


def test_a_commit_that_was_not_given_back_any_more_is_given_back_by_the_next(folder: Path) -> None:
    (folder / NAME).rename(folder / f".torn.{NAME}")
    assert discard_uncommitted(folder) == []
    assert find_damage(folder, read_manifest(folder, NAME)) is None


def _convert(folder: Path, name: str) -> Path:
    """Write what a conversion leaves: folders in a folder."""
    copy = folder / f".universal.{name}"
    (copy / "state" / "zero" / "layer").mkdir(parents=True)
    (copy / "state" / "zero" / "layer" / "fp32.pt").write_bytes(b"w")
    (copy / MANIFEST).write_text("{}")
    return copy


def _entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("aside", [False, True], ids=["in place", "set aside"])
def test_a_deleted_checkpoint_is_gone_at_once_with_its_copy_and_removed_later(folder: Path, aside: bool) -> None:
    other = checkpoint_name(40, 8)
    _committed(folder, other)
    _convert(folder, other)
    _convert(folder, NAME)
    if aside:
        set_aside(folder, NAME)
    assert put_in_trash(folder, NAME)
    assert list_committed(folder) == [other]
    assert all(name.startswith(".trash.") for name in _entries(folder) if NAME in name)
    assert {path.name for path in (folder / f".trash.{'quarantined.' * aside}{NAME}").iterdir()} == {*FILES, MANIFEST}
    assert not put_in_trash(folder, NAME)
    empty_trash(folder)
    assert _entries(folder) == [f".universal.{other}", other]
    empty_trash(folder)


def test_a_deleted_checkpoint_keeps_its_number_while_it_is_in_the_trash_and_in_the_journal(folder: Path) -> None:
    _committed(folder, checkpoint_name(40, 8))
    set_aside(folder, checkpoint_name(40, 8))
    put_in_trash(folder, checkpoint_name(40, 8))
    assert next_save_number(folder) == 9
    empty_trash(folder)
    assert next_save_number(folder, [checkpoint_name(40, 8)]) == 9


def test_a_converted_copy_goes_without_its_checkpoint(folder: Path) -> None:
    _convert(folder, NAME)
    assert put_conversion_in_trash(folder, NAME)
    assert not put_conversion_in_trash(folder, NAME)
    empty_trash(folder)
    assert _entries(folder) == [NAME]


def test_a_recorded_deletion_is_finished_wherever_it_was_killed(folder: Path) -> None:
    in_place, aside, renamed, half_removed, copy_only = (checkpoint_name(step, step) for step in (30, 40, 50, 60, 70))
    for name in (in_place, aside, renamed, half_removed):
        _committed(folder, name)
    set_aside(folder, aside)
    put_in_trash(folder, renamed)
    put_in_trash(folder, half_removed)
    (folder / f".trash.{half_removed}" / MANIFEST).unlink()
    _convert(folder, copy_only)
    deleted = [in_place, aside, renamed, half_removed, copy_only, checkpoint_name(80, 80)]
    finish_deletions(folder, deleted)
    assert list_committed(folder) == [NAME]
    assert discard_uncommitted(folder, known=[NAME, *deleted]) == []
    assert _entries(folder) == [NAME]


def test_a_checkpoint_folder_that_is_away_is_not_taken_for_one_where_all_is_done(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        finish_deletions(tmp_path / "away", [NAME])


def _refuse(_path: Path) -> None:
    raise OSError(errno.ENOTEMPTY, "Directory not empty")


def test_what_cannot_be_removed_now_is_left_for_the_next_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_trash(folder, NAME)
    with monkeypatch.context() as broken:
        # As on NFS, where a file that somebody has open leaves a name behind.
        broken.setattr(Path, "rmdir", _refuse)
        empty_trash(folder)
    assert _entries(folder) == [f".trash.{NAME}"]
    empty_trash(folder)
    assert _entries(folder) == []


def test_two_may_empty_the_same_trash_at_the_same_time(folder: Path) -> None:
    for number in range(1, 30):
        name = checkpoint_name(100, 100 + number)
        _committed(folder, name)
        for file in range(20):
            (folder / name / f"shard-{file}").write_bytes(b"x")
        put_in_trash(folder, name)
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(empty_trash, folder) for _ in range(4)]:
            done.result()
    empty_trash(folder)
    assert _entries(folder) == [NAME]


def test_a_manifest_that_cannot_be_read_is_an_error_and_no_damage(folder: Path) -> None:
    name = list_committed(folder)[0]
    _replace_by_folder(folder / name / MANIFEST)
    with pytest.raises(IsADirectoryError):
        read_manifest(folder, name)
