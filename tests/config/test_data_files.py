"""Finding the files to train on."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_resume.config.data_files import check_data_suffices, find_data_files, kind_of
from hpc_resume.config.schema import DataConfig
from hpc_resume.errors import ConfigError


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in (
        "b.txt",
        "a.md",
        "deep/c.py",
        "deep/d.jsonl",
        "deep/e.bin",
        ".hidden.txt",
        ".git/f.txt",
        "site-packages/g.py",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("text\n")
    return tmp_path


def names(files: list[Path], folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in files]


def test_a_folder_gives_its_texts_sorted_without_hidden_and_installed_ones(tree: Path) -> None:
    assert names(find_data_files(DataConfig(paths=(str(tree),))), tree) == [
        "a.md",
        "b.txt",
        "deep/c.py",
        "deep/d.jsonl",
    ]


def test_the_format_chooses_among_the_endings(tree: Path) -> None:
    assert names(find_data_files(DataConfig(paths=(str(tree),), format="jsonl")), tree) == ["deep/d.jsonl"]


def test_a_file_is_taken_once_however_often_it_is_named(tree: Path) -> None:
    paths = (str(tree / "b.txt"), str(tree), str(tree / "*.txt"), str(tree / "deep" / ".." / "b.txt"))
    assert names(find_data_files(DataConfig(paths=paths)), tree).count("b.txt") == 1


def test_a_pattern_reaches_into_folders_but_not_into_hidden_ones(tree: Path) -> None:
    assert names(find_data_files(DataConfig(paths=(str(tree / "**" / "*.txt"),))), tree) == ["b.txt"]


def test_a_named_file_needs_no_known_ending_when_the_format_is_given(tree: Path) -> None:
    paths = (str(tree / "deep" / "e.bin"),)
    assert names(find_data_files(DataConfig(paths=paths, format="text")), tree) == ["deep/e.bin"]
    with pytest.raises(ConfigError, match=r"set data\.format to text or jsonl"):
        find_data_files(DataConfig(paths=paths))


def test_a_saved_dataset_counts_as_one_file(tmp_path: Path) -> None:
    saved = tmp_path / "all" / "saved"
    saved.mkdir(parents=True)
    for name in ("state.json", "dataset_info.json", "data-00000-of-00001.arrow"):
        (saved / name).write_text("{}")
    files = find_data_files(DataConfig(paths=(str(tmp_path),)))
    assert files == [saved]
    assert kind_of(saved, "auto") == "datasets"


@pytest.mark.parametrize(
    ("path", "piece"),
    [
        ("nowhere.txt", "does not exist"),
        ("*.nothing", "found no match"),
        ("empty-folder", "no files with a known ending"),
        ("empty.txt", "are empty"),
    ],
    ids=["missing", "pattern", "folder", "empty file"],
)
def test_nothing_to_train_on_is_named(tmp_path: Path, path: str, piece: str) -> None:
    (tmp_path / "empty-folder").mkdir()
    (tmp_path / "empty.txt").touch()
    with pytest.raises(ConfigError, match=piece) as caught:
        find_data_files(DataConfig(paths=(str(tmp_path / path),)))
    assert str(tmp_path) in str(caught.value)


def test_no_paths_at_all_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"data\.paths is empty"):
        find_data_files(DataConfig())


def test_links_to_folders_do_not_lead_round_in_circles(tree: Path) -> None:
    (tree / "deep" / "up").symlink_to(tree)
    assert len(find_data_files(DataConfig(paths=(str(tree),)))) == 4


@pytest.mark.parametrize(("size", "suffices"), [(799, True), (798, False)], ids=["just enough", "one short"])
def test_data_must_fill_one_batch_at_a_token_for_each_byte(tmp_path: Path, size: int, suffices: bool) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"x" * size)
    data = DataConfig(paths=(str(path),), sequence_tokens=100)
    if suffices:
        check_data_suffices([path], data, 8)
    else:
        with pytest.raises(ConfigError, match="at most 799 tokens, one batch takes 800"):
            check_data_suffices([path], data, 8)


def test_fewer_samples_than_a_batch_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("x" * 1000)
    with pytest.raises(ConfigError, match=r"data\.max_samples is 3, but one batch takes 4"):
        check_data_suffices([path], DataConfig(sequence_tokens=8, max_samples=3), 4)
