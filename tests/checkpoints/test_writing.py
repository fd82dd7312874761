"""Files of a checkpoint: digested while they are written, readable by torch, never a half one that counts."""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from hpc_resume.checkpoints.catalog import digest_file
from hpc_resume.checkpoints.writing import Staging, Writing, copy_file, write_state
from hpc_resume.errors import ConfigError

STATE = {"weights": torch.arange(1000.0), "step": 3, "names": ["a", "b"]}


def test_what_is_written_is_what_torch_reads_and_the_digest_is_that_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    assert write_state(STATE, path) == digest_file(path)
    found = torch.load(path, weights_only=False)
    assert torch.equal(found.pop("weights"), STATE["weights"])
    assert found == {"step": 3, "names": ["a", "b"]}


def test_others_still_write_torchs_checksum(tmp_path: Path) -> None:
    before = torch.serialization.get_crc32_options()
    write_state(STATE, tmp_path / "state.pt")
    assert torch.serialization.get_crc32_options() is before


def test_nothing_is_ever_overwritten(tmp_path: Path) -> None:
    (tmp_path / "state.pt").write_bytes(b"the way back")
    with pytest.raises(FileExistsError):
        write_state(STATE, tmp_path / "state.pt")
    assert (tmp_path / "state.pt").read_bytes() == b"the way back"


@pytest.fixture
def small_files() -> Iterator[None]:
    """Let no file of this process grow beyond 1000 bytes."""
    allowed, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, most))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (allowed, most))


@pytest.mark.usefixtures("small_files")
def test_a_disk_that_refuses_is_an_oserror_not_one_of_the_zip_writer(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="File too large"):
        write_state({"weights": torch.zeros(100_000)}, tmp_path / "state.pt")


def test_a_copy_has_the_digest_of_the_original(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(range(256)) * 100_000)
    whole = digest_file(source)
    assert copy_file(source, whole, tmp_path / "copy") == whole == digest_file(tmp_path / "copy")
    source.write_bytes(bytes(100))
    with pytest.raises(OSError, match="is not what was written there"):
        copy_file(source, whole, tmp_path / "changed")


def test_writing_goes_on_beside_and_says_when_it_is_done(tmp_path: Path) -> None:
    gate = threading.Event()

    def first() -> object:
        assert gate.wait(60)
        return write_state(STATE, tmp_path / "a")

    writing = Writing({"a": first, "b": lambda: write_state(STATE, tmp_path / "b")})  # type: ignore[dict-item]
    assert not writing.is_done()
    gate.set()
    files, problem = writing.wait()
    assert writing.is_done()
    assert problem is None
    assert files == {name: digest_file(tmp_path / name) for name in ("a", "b")}


def test_what_goes_wrong_beside_is_said_and_ends_the_rest_and_cleans_up(tmp_path: Path) -> None:
    cleaned = threading.Event()
    (tmp_path / "a").touch()
    jobs = {name: lambda name=name: write_state(STATE, tmp_path / name) for name in ("a", "b")}
    files, problem = Writing(jobs, cleaned.set).wait()  # type: ignore[arg-type]
    assert files == {}
    assert problem is not None
    assert problem.startswith("FileExistsError")
    assert not (tmp_path / "b").exists()
    assert cleaned.is_set()


def test_a_staging_folder_belongs_to_one_rank_of_one_run_and_loses_what_a_killed_attempt_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCRATCH_OF_JOB", str(tmp_path))
    first = Staging("$SCRATCH_OF_JOB/fast", tmp_path / "run-0000", 1, 0)
    other = Staging("$SCRATCH_OF_JOB/fast", tmp_path / "run-0000", 1, 1)
    path, entry = first.put(STATE, "state.pt")
    other.put(STATE, "state.pt")
    assert path.parent.parent == tmp_path / "fast"
    assert entry == digest_file(path)
    again = Staging("$SCRATCH_OF_JOB/fast", tmp_path / "run-0000", 2, 0)
    assert again.folder != first.folder
    assert not first.folder.exists()
    assert [p.name for p in other.folder.iterdir()] == ["state.pt"]
    other.empty()
    assert list(other.folder.iterdir()) == []
    other.remove()
    assert list((tmp_path / "fast").iterdir()) == [again.folder]


@pytest.mark.parametrize("where", ["$NOT_SET_ANYWHERE/fast", "$RELATIVE/fast"])
def test_a_staging_folder_that_is_not_where_it_was_meant_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RELATIVE", "here")
    with pytest.raises(ConfigError, match=r"checkpoints\.staging_dir is \$"):
        Staging(where, tmp_path / "run-0000", 1, 0)
    assert list(tmp_path.iterdir()) == []


def test_a_staging_folder_that_cannot_be_made_is_the_users_matter(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="can't make"):
        Staging(str(tmp_path / "file"), tmp_path / "run-0000", 1, 0)
