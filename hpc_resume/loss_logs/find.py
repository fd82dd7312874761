"""Finding training logs: which files below a folder belong to which training, each training once."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hpc_resume.errors import ConfigError
from hpc_resume.loss_logs.event_files import is_event_file
from hpc_resume.loss_logs.json_logs import global_step

STATE_FILE = "trainer_state.json"

_CHECKPOINT = re.compile(r"checkpoint-(\d+)$")
_ATTEMPT = re.compile(r"attempt-\d{4,}\.jsonl$")
_RUN = re.compile(r"run-\d{4,}$")
_LOOKS_LIKE_A_LOG = re.compile(
    r"\.(?:jsonl|json|csv|tsv|log|out|txt)(?:\.(?:gz|xz|zst|bz2))?$",
    re.IGNORECASE,
)
_OF_A_MODEL = re.compile(
    r"^(?:\w*config|tokenizer|vocab|merges|added_tokens|special_tokens_map|.*\.index)\.(?:json|txt)$", re.IGNORECASE
)
"""What lies in every folder of a Hugging Face model, and is never a log."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogFiles:
    """The files of one training."""

    name: str
    """What the curve is called: the path of its file or folder."""

    files: tuple[Path, ...]
    """In the order in which they were written; several only where one training writes several."""

    certain: bool
    """Whether it must be a log: a person named it, or it has a name that nothing else has."""

    @property
    def may_be_anything(self) -> bool:
        """Whether it is a JSON file that nobody named: all sorts of programs write such."""
        return not self.certain and ".json" in (ending.lower() for ending in self.files[0].suffixes)


def find_logs(path: Path) -> list[LogFiles]:
    """Return the logs that a path means: the file, or those in a folder and below it, each training once.

    - Of the `trainer_state.json` of an output folder and its checkpoints the newest, since each holds all before it;
      then TensorBoard files in `runs` beside them, where the Trainer puts its own, are the same training again.
    - Of one of our run folders the metrics of all attempts; nothing else in it.
    - Of TensorBoard event files in one folder all together, as TensorBoard has it.
    - Any other file with a name such as logs have; whether it is one shows when it is read.

    Raises:
        ConfigError: there is no such file or folder, or a folder has no file that could be a log.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{path}: it can't be read: {why}; name a log, or a folder with logs in it") from error
    if stat.S_ISREG(mode):
        return [LogFiles(name=str(path), files=(path,), certain=True)]
    if not stat.S_ISDIR(mode):
        raise ConfigError(f"{path}: it is neither a file nor a folder; save what comes from there to a file first")
    found = list(_below(path))
    if not found:
        raise ConfigError(
            f"{path}: no file below it could be a training log; looked for {STATE_FILE}, TensorBoard event files, and "
            "names that end in .jsonl, .json, .csv, .tsv, .log, .out or .txt; name the file itself if it is called "
            "otherwise"
        )
    return found


def _below(folder: Path) -> Iterator[LogFiles]:
    try:
        with os.scandir(folder) as listed:
            # What is neither, a pipe say, is left alone: opening it could take for ever.
            entries = sorted((entry.name, entry.is_dir()) for entry in listed if entry.is_dir() or entry.is_file())
    except OSError:
        # Reading it says why.
        yield LogFiles(name=str(folder), files=(folder,), certain=True)
        return
    files = [folder / name for name, is_folder in entries if not is_folder]
    folders = [folder / name for name, is_folder in entries if is_folder and not _is_hidden(folder / name)]
    attempts = _attempts(folder, folders)
    if attempts:
        yield LogFiles(name=str(folder), files=tuple(attempts), certain=True)
        return
    runs = [inner for inner in folders if _RUN.search(inner.name)]
    if runs and (folder / "config.yaml") in files:
        # A submission of ours: everything else in it is not training.
        for run in runs:
            yield from _below(run)
        return
    state = _newest_state(folder, files, folders)
    if state is not None:
        yield LogFiles(name=str(state), files=(state,), certain=True)
        folders = [inner for inner in folders if inner.name != "runs" and not _CHECKPOINT.search(inner.name)]
    yield from _plain_files(folder, files)
    for inner in folders:
        yield from _below(inner)


def _is_hidden(folder: Path) -> bool:
    # Links are not followed, or a link to a folder above would never end.
    return folder.name.startswith(".") or folder.is_symlink()


def _plain_files(folder: Path, files: list[Path]) -> Iterator[LogFiles]:
    events = tuple(path for path in files if is_event_file(path))
    if events:
        yield LogFiles(name=str(folder), files=events, certain=True)
    for path in files:
        # A state of the Trainer was taken already, or a newer one that has all of it.
        known = path in events or path.name == STATE_FILE or _OF_A_MODEL.search(path.name)
        if _LOOKS_LIKE_A_LOG.search(path.name) and not known:
            yield LogFiles(name=str(path), files=(path,), certain=False)


def _attempts(folder: Path, folders: list[Path]) -> list[Path]:
    """Return the metrics of one of our run folders, by attempt; the folder of the metrics itself will do."""
    place = folder if folder.name == "metrics" else folder / "metrics"
    if place != folder and place not in folders:
        return []
    return sorted(path for path in place.glob("attempt-*.jsonl") if _ATTEMPT.match(path.name))


def _newest_state(folder: Path, files: list[Path], folders: list[Path]) -> Path | None:
    """Return the newest of the states that an output folder, or a checkpoint, of the Hugging Face Trainer has."""
    states = {
        int(match.group(1)): inner / STATE_FILE
        for inner in folders
        if (match := _CHECKPOINT.search(inner.name)) and (inner / STATE_FILE).is_file()
    }
    newest = max(states, default=None)
    own = folder / STATE_FILE
    if own not in files:
        return None if newest is None else states[newest]
    # It is written at the end of a training, so it is older than the checkpoints of one that was resumed after that.
    return own if newest is None or global_step(own) >= newest else states[newest]
