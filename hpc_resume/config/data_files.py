"""Find the files that a run is trained on, without reading them; light enough for a login node."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from hpc_resume.config.schema import DataConfig
from hpc_resume.errors import ConfigError

FileKind = Literal["text", "jsonl", "datasets"]

TEXT_ENDINGS = frozenset({".txt", ".text", ".md", ".rst", ".tex", ".py", ".c", ".h", ".cpp", ".java", ".js", ".rs"})
"""Endings that are read as text when a folder is searched or the format is `auto`."""

JSONL_ENDINGS = frozenset({".jsonl", ".ndjson"})
"""Endings that are read as one JSON object a line."""

_SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__", "node_modules"})
"""Folders that are not entered: what happens to be installed below a folder is not that folder's text."""

_PATTERN_SIGNS = frozenset("*?[")


def find_data_files(data: DataConfig) -> list[Path]:
    """List what `data.paths` name, sorted and without duplicates, so that the order is the same everywhere.

    A folder gives the files below it whose ending fits the format; hidden files and installed packages are left out.
    A file that is named, or matched by a pattern, is taken whatever its ending. A folder saved by the `datasets`
    library counts as one file.

    Raises:
        ConfigError: A path or pattern matches nothing, an ending is unknown, or all that was found is empty.
    """
    if not data.paths:
        raise ConfigError("data.paths is empty; name at least one file, folder or pattern to train on")
    found: dict[Path, Path] = {}
    for entry in data.paths:
        for path in _expand(entry, data):
            found.setdefault(path.resolve(), path)
    files = sorted(found.values(), key=lambda path: path.as_posix())
    if sum(map(data_size, files)) == 0:
        raise ConfigError(
            f"data.paths: all {len(files)} files are empty, the first is {files[0]}; name files with text"
        )
    for path in files:
        kind_of(path, data.format)
    return files


def kind_of(path: Path, data_format: str) -> FileKind:
    """How one file is to be read; the ending decides when the format is `auto`."""
    if data_format == "auto":
        if _is_dataset(path):
            return "datasets"
        if path.suffix.lower() in JSONL_ENDINGS:
            return "jsonl"
        if path.suffix.lower() in TEXT_ENDINGS:
            return "text"
        raise ConfigError(f"data.format is auto, but the ending of {path} is unknown; set data.format to text or jsonl")
    if data_format == "datasets" and not _is_dataset(path):
        raise ConfigError(
            f"data.format is datasets, but {path} is not a folder written by Dataset.save_to_disk; correct data.paths"
        )
    return "text" if data_format == "text" else "jsonl" if data_format == "jsonl" else "datasets"


def data_size(path: Path) -> int:
    """Size of a file, or of the tables of a saved dataset, in bytes."""
    if path.is_dir():
        return sum(table.stat().st_size for table in path.rglob("*.arrow"))
    return path.stat().st_size


def check_data_suffices(files: list[Path], data: DataConfig, global_batch_size: int) -> None:
    """Refuse data that cannot fill one batch even at a token for each byte and an end token for each file.

    An upper bound, for tokenizers that have no token for less than a byte; it catches the wrong folder before the job
    is queued. The exact check follows when the text has been tokenized.
    """
    if data.max_samples is not None and data.max_samples < global_batch_size:
        raise ConfigError(
            f"data.max_samples is {data.max_samples}, but one batch takes {global_batch_size} samples over all ranks; "
            "raise it, or make the batch smaller"
        )
    most = sum(map(data_size, files)) + len(files)
    needed = data.sequence_tokens * global_batch_size
    if most < needed:
        raise ConfigError(
            f"too little data for one batch: {len(files)} files hold at most {most} tokens, one batch takes {needed} "
            f"({global_batch_size} samples of data.sequence_tokens={data.sequence_tokens}); "
            "name more data, or make the batch or the samples smaller"
        )


def _expand(entry: str, data: DataConfig) -> Iterator[Path]:
    named = Path(entry).expanduser()
    if named.exists():
        matches = [named]
    elif _PATTERN_SIGNS & set(entry):
        matches = [path for path in _glob(named) if not _hidden(path, named)]
    else:
        raise ConfigError(f"data.paths names {entry}, which does not exist on this machine; correct the path")
    count = 0
    for match in matches:
        for path in _files_below(match, data) if match.is_dir() and not _is_dataset(match) else [match]:
            count += 1
            yield path
    if count == 0:
        what = "files with a known ending" if matches else "match"
        raise ConfigError(
            f"data.paths: found no {what} for {entry} (format {data.format}); correct it, or name files by a pattern"
        )


def _glob(pattern: Path) -> list[Path]:
    parts = pattern.parts
    first = next(index for index, part in enumerate(parts) if _PATTERN_SIGNS & set(part))
    base = Path(*parts[:first])
    return [path for path in base.glob(str(Path(*parts[first:]))) if path.is_file() or path.is_dir()]


def _hidden(path: Path, pattern: Path) -> bool:
    # A dot that the pattern itself spells out was meant.
    return any(part.startswith(".") for part in path.parts if part not in pattern.parts)


def _files_below(folder: Path, data: DataConfig) -> Iterator[Path]:
    endings = {
        "auto": TEXT_ENDINGS | JSONL_ENDINGS,
        "text": TEXT_ENDINGS,
        "jsonl": JSONL_ENDINGS,
        "datasets": frozenset[str](),
    }[data.format]
    for parent, folders, names in os.walk(folder, onerror=_refuse_folder):
        datasets = [name for name in folders if _is_dataset(Path(parent, name))]
        if data.format in ("auto", "datasets"):
            yield from (Path(parent, name) for name in datasets if not name.startswith("."))
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and name not in _SKIPPED_FOLDERS and name not in datasets
        ]
        for name in names:
            path = Path(parent, name)
            if not name.startswith(".") and path.suffix.lower() in endings and path.is_file():
                yield path


def _is_dataset(path: Path) -> bool:
    one = (path / "dataset_info.json").is_file() and (path / "state.json").is_file()
    return one or (path / "dataset_dict.json").is_file()


def _refuse_folder(error: OSError) -> None:
    raise ConfigError(f"data.paths: cannot look into {error.filename} ({error.strerror}); correct its permissions")
