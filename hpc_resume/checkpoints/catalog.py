"""Checkpoints on disk: list, verify, set aside. Nothing here loads them.

A checkpoint is committed when its `manifest.json` was renamed into place. Its name tells the step and a save
number that only goes up, so that no folder is ever written twice.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from hpc_resume.recovery.events import Checkpoint

SCHEMA = 1
MANIFEST = "manifest.json"
_NAME = re.compile(r"^step-(\d{9})\.s(\d{6})$")
_ASIDE = "quarantined."
_TRASH = ".trash."


@dataclass(frozen=True, kw_only=True, slots=True)
class FileEntry:
    """Size in bytes and xxh3-128 digest of one file."""

    size: int
    digest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What a checkpoint is, and what it consists of."""

    schema: int
    checkpoint: Checkpoint
    claim: int
    attempt: int
    world_size: int
    zero_stage: int
    precision: str
    num_samples: int
    segments: list[list[Any]]
    versions: dict[str, str]
    files: dict[str, FileEntry] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the manifest as JSON text."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    @staticmethod
    def from_json(text: str) -> Manifest:
        """Read a manifest.

        Raises:
            ValueError: the text is not a manifest of this schema.
        """
        data = json.loads(text)
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise ValueError(f"not a manifest of schema {SCHEMA}")
        try:
            data["checkpoint"] = Checkpoint(**data["checkpoint"])
            data["files"] = {name: FileEntry(**entry) for name, entry in data["files"].items()}
            return Manifest(**data)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"not a manifest: {error}") from error


def checkpoint_name(step: int, save_number: int) -> str:
    """Return the folder name of a checkpoint."""
    return f"step-{step:09d}.s{save_number:06d}"


def next_save_number(folder: Path, recorded: Iterable[str] = ()) -> int:
    """Return a save number that no folder here, whole, torn or set aside, has ever had, and no recorded checkpoint.

    One that vanished from the disk keeps its name: a new one under it would be taken for the old.
    """
    here = (path.name.removeprefix(_ASIDE).removeprefix(_TRASH) for path in folder.iterdir())
    names = (*here, *recorded)
    return max((int(match.group(2)) for name in names if (match := _NAME.match(name))), default=0) + 1


def list_committed(folder: Path) -> list[str]:
    """Return the names of all committed checkpoints that are not set aside, by save number.

    Raises:
        FileNotFoundError: the folder is not there; that is not the same as an empty one.
    """
    names = [path.name for path in folder.iterdir() if _NAME.match(path.name) and (path / MANIFEST).exists()]
    return sorted(names, key=lambda name: name.rpartition(".s")[2])


def is_committed(folder: Path, name: str) -> bool:
    """Tell whether one checkpoint is there and committed.

    Raises:
        OSError: the file system can't say.
    """
    try:
        (folder / name / MANIFEST).stat()
    except FileNotFoundError:
        return False
    return True


def read_manifest(folder: Path, name: str) -> Manifest:
    """Read the manifest of a checkpoint.

    Raises:
        ValueError: it is missing, damaged, or of another checkpoint.
        OSError: it can't be read, which proves nothing about what is in it.
    """
    try:
        manifest = Manifest.from_json((folder / name / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ValueError("its manifest is missing") from error
    if manifest.checkpoint.name != name:
        raise ValueError(f"its manifest is that of {manifest.checkpoint.name}")
    return manifest


def digest_file(path: Path) -> FileEntry:
    """Return size and digest of a file."""
    state = xxhash.xxh3_128()
    size = 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            state.update(chunk)
            size += len(chunk)
    return FileEntry(size=size, digest=state.hexdigest())


def owned_by(name: str, rank: int) -> bool:
    """Tell whether `rank` wrote the file `name` of a checkpoint; rank 0 wrote all that is nobody else's."""
    match = re.search(r"zero_pp_rank_(\d+)_|^rank-(\d+)\.", name)
    return (int(match.group(1) or match.group(2)) if match else 0) == rank


def find_damage(folder: Path, manifest: Manifest, rank: int | None = None) -> str | None:
    """Compare a checkpoint's files with its manifest; return the first difference in words, or None.

    With `rank`, only that rank's files are read.

    Raises:
        OSError: a file is there but can't be read, which proves nothing about what is in it.
    """
    for name, entry in sorted(manifest.files.items()):
        if rank is not None and not owned_by(name, rank):
            continue
        path = folder / manifest.checkpoint.name / name
        try:
            found = digest_file(path)
        except FileNotFoundError:
            return f"{name} is missing"
        if found.size != entry.size:
            return f"{name} has {found.size} bytes; its manifest says {entry.size}"
        if found.digest != entry.digest:
            return f"{name} has changed since it was saved (digest {found.digest}; its manifest says {entry.digest})"
    return None


def set_aside(folder: Path, name: str) -> bool:
    """Rename a checkpoint so that no tool takes it for usable; safe to do twice.

    Returns whether there was something to rename.
    """
    path = folder / name
    if not path.exists():
        return False
    path.rename(folder / f"{_ASIDE}{name}")
    return True


def discard_uncommitted(folder: Path, known: Container[str] = ()) -> list[str]:
    """Delete what is left of saves that were never committed; return their names.

    What was ever recorded as committed, `known`, is left alone, whatever has become of its manifest. An empty folder
    stays in place of each name, so that its save number is not used again: a zombie may still know it.
    """
    for trash in folder.glob(f"{_TRASH}*"):
        _empty(trash)  # somebody was killed between the two steps below
    names = [path.name for path in folder.iterdir() if _NAME.match(path.name) and path.name not in known]
    return [name for name in names if discard(folder, name)]


def discard(folder: Path, name: str) -> bool:
    """Delete what one save left behind, unless it is committed after all; return whether there was anything."""
    path, trash = folder / name, folder / f"{_TRASH}{name}"
    if is_committed(folder, name) or not path.exists():
        return False
    path.rename(trash)
    # Looked at again where no writer knows it any more: a commit in between is given back.
    if (trash / MANIFEST).exists():
        trash.rename(path)
        return False
    _empty(trash)
    return True


def _empty(trash: Path) -> None:
    for path in trash.iterdir():
        path.unlink()
