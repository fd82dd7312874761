"""Checkpoints on disk: list, verify, set aside. Nothing here loads them.

A checkpoint is committed when its `manifest.json` was renamed into place. Its name tells the step and a save
number that only goes up, so that no folder is ever written twice.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import re
import shutil
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from hpc_resume.errors import MismatchError
from hpc_resume.recovery.events import Checkpoint

SCHEMA = 2
MANIFEST = "manifest.json"
_NAME = re.compile(r"^step-(\d{9})\.s(\d{6})$")
_ASIDE = "quarantined."
_TRASH = ".trash."
"""Deleted, and not removed yet."""
_TORN = ".torn."
"""What is left of saves that were not committed: their names."""
_UNIVERSAL = ".universal."
"""A copy of a checkpoint for other numbers of ranks."""
_DRAFT = ".draft."
"""What stands in the name of such a copy that is being made."""


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
    model: str
    """What tells one model from another: a digest of the names and shapes of its parameters."""
    parameters: int
    num_samples: int
    segments: list[list[Any]]
    versions: dict[str, str]
    files: dict[str, FileEntry] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the manifest as JSON text, with a digest of its own."""
        data = dataclasses.asdict(self)
        return json.dumps({**data, "digest": _digest_of(data)}, indent=1)

    @staticmethod
    def from_json(text: str) -> Manifest:
        """Read a manifest.

        Raises:
            ValueError: the text is not a manifest.
            MismatchError: it is one of another schema.
        """
        try:
            data = json.loads(text)
        except ValueError as error:
            raise ValueError(f"its manifest is not JSON: {error}") from error
        schema = data.get("schema") if isinstance(data, dict) else None
        if not isinstance(schema, int):
            raise ValueError("not a manifest")  # noqa: TRY004 (it is what the text says)
        # Schema 1 had no digest of its own. One that is there must match, whatever the schema: its bits flip as well.
        digest = data.pop("digest", None)
        if digest != _digest_of(data) and (digest is not None or schema >= 2):
            raise ValueError("its manifest has changed since it was saved")
        if schema != SCHEMA:
            versions = data.get("versions")
            saved_by = versions.get("hpc_resume", "unknown") if isinstance(versions, dict) else "unknown"
            raise MismatchError(
                f"its manifest has schema {schema} (saved by hpc_resume {saved_by}); this version reads schema "
                f"{SCHEMA}: go on with the version that saved it"
            )
        try:
            data["checkpoint"] = Checkpoint(**data["checkpoint"])
            data["files"] = {name: FileEntry(**entry) for name, entry in data["files"].items()}
            return Manifest(**data)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"not a manifest: {error}") from error


def _digest_of(data: dict[str, Any]) -> str:
    return xxhash.xxh3_64_hexdigest(json.dumps(data, sort_keys=True).encode())


def checkpoint_name(step: int, save_number: int) -> str:
    """Return the folder name of a checkpoint."""
    return f"step-{step:09d}.s{save_number:06d}"


def next_save_number(folder: Path, recorded: Iterable[str] = ()) -> int:
    """Return a save number that no folder here, whole, torn or set aside, has ever had, and no recorded checkpoint.

    One that vanished from the disk keeps its name: a new one under it would be taken for the old.
    """
    here = (path.name.removeprefix(_TORN).removeprefix(_TRASH).removeprefix(_ASIDE) for path in folder.iterdir())
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


def find(folder: Path, name: str) -> Path | None:
    """Return where a checkpoint lies, under its own name or set aside; None if it is gone."""
    return next((path for path in (folder / name, folder / f"{_ASIDE}{name}") if path.exists()), None)


def conversion_path(folder: Path, name: str) -> Path:
    """Return where the converted copy of a checkpoint lies; a draft of it has a name that `draft_prefix` begins."""
    return folder / f"{_UNIVERSAL}{name}"


def draft_prefix(name: str) -> str:
    """Return how the name of a converted copy that is being made begins."""
    return f"{_UNIVERSAL}{name}{_DRAFT}"


def read_manifest(folder: Path, name: str) -> Manifest:
    """Read the manifest of a checkpoint.

    Raises:
        ValueError: it is missing, damaged, or of another checkpoint.
        MismatchError: it was written by another version of this program.
        OSError: it can't be read, which proves nothing about what is in it.
    """
    try:
        manifest = Manifest.from_json((folder / name / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ValueError("its manifest is missing") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"its manifest is not text: {error}") from error
    except MismatchError as error:
        raise MismatchError(f"checkpoint {name} can't be read: {error}") from None
    if manifest.checkpoint.name != name:
        raise ValueError(f"its manifest is that of {manifest.checkpoint.name}")
    return manifest


def digest_file(path: Path) -> FileEntry:
    """Return size and digest of a file."""
    with path.open("rb", buffering=0) as file:
        return _digest(file)


def _digest(file: io.FileIO) -> FileEntry:
    state = xxhash.xxh3_128()
    size = 0
    buffer = memoryview(bytearray(1 << 20))
    while count := file.readinto(buffer):
        state.update(buffer[:count])
        size += count
    return FileEntry(size=size, digest=state.hexdigest())


def owned_by(name: str, rank: int) -> bool:
    """Tell whether `rank` wrote the file `name` of a checkpoint; rank 0 wrote all that is nobody else's."""
    match = re.search(r"zero_pp_rank_(\d+)_|^rank-(\d+)\.", name)
    return (int(match.group(1) or match.group(2)) if match else 0) == rank


def find_damage(folder: Path, manifest: Manifest, rank: int | None = None, *, quick: bool = False) -> str | None:
    """Compare a checkpoint's files with its manifest; return the first difference in words, or None.

    With `rank`, only that rank's files are read; `quick` compares sizes and reads nothing.

    Raises:
        OSError: a file is there but can't be read, which proves nothing about what is in it.
    """
    place = folder / manifest.checkpoint.name
    for name, entry in sorted(manifest.files.items()):
        if rank is not None and not owned_by(name, rank):
            continue
        if (difference := difference_of(place / name, entry, quick=quick)) is not None:
            return f"{name} {difference}"
    if rank not in (None, 0):
        return None
    # DeepSpeed finds files by patterns; others that somebody left there do no harm.
    foreign = (name for name in find_foreign(folder, manifest) if name.endswith("_states.pt"))
    return next((f"{name} is not in its manifest, and DeepSpeed could load it" for name in foreign), None)


def difference_of(path: Path, entry: FileEntry, *, quick: bool = False) -> str | None:
    """Compare a file with what a manifest says of it; return the difference, as what is said of the file, or None.

    Raises:
        OSError: it is there but can't be read, which proves nothing about what is in it.
    """
    try:
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size != entry.size:
                return f"has {size} bytes; its manifest says {entry.size}"
            digest = entry.digest if quick else _digest(file).digest
    except FileNotFoundError:
        return "is missing"
    if digest != entry.digest:
        return f"has changed since it was saved (digest {digest}; its manifest says {entry.digest})"
    return None


def find_foreign(folder: Path, manifest: Manifest) -> list[str]:
    """Return what lies in a checkpoint and is not part of it."""
    found = {path.name for path in (folder / manifest.checkpoint.name).iterdir()}
    return sorted(found - manifest.files.keys() - {MANIFEST})


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
    """Delete what is left of saves that were never committed; return their names. Finish deletions that were begun.

    What was ever recorded as committed, `known`, is left alone, whatever has become of its manifest. An empty folder
    stays in place of each name, so that its save number is not used again: a zombie may still know it.
    """
    empty_trash(folder)
    discard_conversion_drafts(folder)
    for torn in folder.glob(f"{_TORN}*"):
        # Somebody was killed between the two steps below.
        if (torn / MANIFEST).exists():
            torn.rename(folder / torn.name.removeprefix(_TORN))
        else:
            _empty(torn)
    names = [path.name for path in folder.iterdir() if _NAME.match(path.name) and path.name not in known]
    return [name for name in names if discard(folder, name)]


def discard_conversion_drafts(folder: Path) -> None:
    """Delete what conversions left behind that were killed."""
    for path in folder.glob(f"{_UNIVERSAL}*{_DRAFT}*"):
        shutil.rmtree(path, ignore_errors=True)  # somebody who is cut off may still write there; then the next time


def discard(folder: Path, name: str) -> bool:
    """Delete what one save left behind, unless it is committed after all; return whether there was anything."""
    path, torn = folder / name, folder / f"{_TORN}{name}"
    if is_committed(folder, name) or not path.exists():
        return False
    path.rename(torn)
    # Looked at again where no writer knows it any more: a commit in between is given back.
    if (torn / MANIFEST).exists():
        torn.rename(path)
        return False
    _empty(torn)
    return True


def put_in_trash(folder: Path, name: str) -> bool:
    """Rename a checkpoint whose deletion is recorded, set aside or not, and its converted copy, so that it is gone.

    Safe to do twice, and by two at the same time. Returns whether there was anything.
    """
    renamed = [_to_trash(folder, f"{prefix}{name}") for prefix in (_UNIVERSAL, _ASIDE, "")]
    return any(renamed)


def put_conversion_in_trash(folder: Path, name: str) -> bool:
    """Rename the converted copy of a checkpoint, so that it is gone; return whether there was one."""
    return _to_trash(folder, f"{_UNIVERSAL}{name}")


def finish_deletions(folder: Path, deleted: Iterable[str]) -> None:
    """Put in the trash what is still in place although its deletion is recorded.

    What can't be renamed now is left for the next time; nobody uses it.

    Raises:
        FileNotFoundError: the folder is not there; that is not the same as an empty one.
    """
    here = {path.name.removeprefix(_UNIVERSAL).removeprefix(_ASIDE) for path in folder.iterdir()}
    for name in sorted(here.intersection(deleted)):
        with contextlib.suppress(OSError):
            put_in_trash(folder, name)


def empty_trash(folder: Path) -> None:
    """Remove what is in the trash from the disk: slow, and safe beside everything else, also another such call.

    What can't be removed now is left for the next time.
    """
    for trash in folder.glob(f"{_TRASH}*"):
        with contextlib.suppress(OSError):
            _empty(trash)
            trash.rmdir()


def _to_trash(folder: Path, entry: str) -> bool:
    try:
        (folder / entry).rename(folder / f"{_TRASH}{entry}")
    except FileNotFoundError:
        return False
    return True


def _empty(folder: Path) -> None:
    """Remove all that is in a folder; what somebody else removes at the same time is no error."""
    for path in list(folder.iterdir()):
        with contextlib.suppress(FileNotFoundError):
            if path.is_dir() and not path.is_symlink():
                _empty(path)
                path.rmdir()
            else:
                path.unlink()
