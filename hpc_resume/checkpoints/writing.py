"""Files of a checkpoint: written once, digested on the way, durable before anybody hears of them."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import xxhash

from hpc_resume.checkpoints.catalog import FileEntry
from hpc_resume.errors import ConfigError

_CHUNK = 8 << 20
_crc_lock = threading.Lock()


class _DigestingFile:
    """A file to be written from front to end, whose size and digest are known when it is closed."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb", buffering=0)
        self._digest = xxhash.xxh3_128()
        self._size = 0

    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        size = len(rest)
        self._digest.update(rest)
        self._size += size
        while rest:
            rest = rest[self._file.write(rest) :]
        return size

    def flush(self) -> None:
        """Nothing is held back here; torch asks for it."""

    def finish(self, *, sync: bool) -> FileEntry:
        if sync:
            os.fsync(self._file.fileno())
        return FileEntry(size=self._size, digest=self._digest.hexdigest())

    def close(self) -> None:
        self._file.close()


@contextmanager
def _digesting(path: Path) -> Iterator[_DigestingFile]:
    file = _DigestingFile(path)
    try:
        yield file
    finally:
        file.close()


def write_state(state: Any, path: Path, *, sync: bool = True) -> FileEntry:
    """Write state as `torch.save` does, and with `sync` make it durable; `torch.load` reads it.

    Raises:
        OSError: the disk refused.
        FileExistsError: the file is there already; nothing is ever overwritten.
    """
    # torch's own checksum takes ten times as long as the digest, and no reader of torch's ever looks at it.
    with _digesting(path) as file, _crc_lock:
        before = torch.serialization.get_crc32_options()
        torch.serialization.set_crc32_options(False)
        try:
            torch.save(state, file)  # type: ignore[arg-type]
        except RuntimeError as error:
            # The zip writer wraps what the disk said.
            raise error.__cause__ or error.__context__ or error from None
        finally:
            torch.serialization.set_crc32_options(before)
        return file.finish(sync=sync)


def copy_file(source: Path, expected: FileEntry, target: Path) -> FileEntry:
    """Copy a file that was just written, and make the copy durable.

    Raises:
        OSError: a disk refused, or did not give back what was written.
    """
    with source.open("rb", buffering=0) as reader, _digesting(target) as file:
        buffer = memoryview(bytearray(_CHUNK))
        while count := reader.readinto(buffer):
            file.write(buffer[:count])
        found = file.finish(sync=True)
    if found != expected:
        raise OSError(f"{source} is not what was written there ({found}, not {expected})")
    return found


class Writing:
    """Files of one rank on their way to the disk, in a thread of their own."""

    def __init__(self, jobs: dict[str, Callable[[], FileEntry]], cleanup: Callable[[], None] = lambda: None) -> None:
        """Begin; `jobs` write one file each, by its name, in this order; `cleanup` runs last, whatever happens."""
        self._jobs = jobs
        self._cleanup = cleanup
        self._files: dict[str, FileEntry] = {}
        self._problem: str | None = None
        self._thread = threading.Thread(target=self._run, name="checkpoint writer", daemon=True)
        self._thread.start()

    def is_done(self) -> bool:
        """Tell whether it has ended, well or badly."""
        return not self._thread.is_alive()

    def wait(self) -> tuple[dict[str, FileEntry], str | None]:
        """Wait for the end; return the durable files, and what went wrong in words, if something did."""
        self._thread.join()
        return self._files, self._problem

    def _run(self) -> None:
        try:
            # Popped: what is written need not be kept in memory any longer.
            for name in list(self._jobs):
                self._files[name] = self._jobs.pop(name)()
        except BaseException as error:  # the other ranks must hear of it, whatever it is
            self._problem = f"{type(error).__name__}: {error}"
        finally:
            self._jobs.clear()
            with contextlib.suppress(OSError):
                self._cleanup()


class Staging:
    """A folder on a disk of this node, where one rank's files wait to be copied to where all nodes see them."""

    def __init__(self, parent: str, run: Path, attempt: int, rank: int) -> None:
        """Make a folder for this rank of this attempt under `parent`, whose variables are filled in.

        What killed attempts of the same run left behind there goes.

        Raises:
            ConfigError: it can't be made, or is not on a disk of this node for all we know.
        """
        where = os.path.expandvars(parent)
        if "$" in where or not where.startswith("/"):
            raise ConfigError(
                f"checkpoints.staging_dir is {parent}, which gives no absolute path on node {socket.gethostname()} "
                f"({where}); set the variable there, or write another path"
            )
        run_key = xxhash.xxh3_64_hexdigest(str(run).encode())
        for old in Path(where).glob(f"hpc_resume-{run_key}-*-rank-{rank:04d}"):
            shutil.rmtree(old, ignore_errors=True)
        # Its own name for each attempt: one that is cut off must not put its files in place of these.
        self.folder = Path(where) / f"hpc_resume-{run_key}-attempt-{attempt:04d}-rank-{rank:04d}"
        try:
            self.folder.mkdir(parents=True, mode=0o700)
        except OSError as error:
            raise ConfigError(
                f"checkpoints.staging_dir: can't make {self.folder} on node {socket.gethostname()} ({error.strerror})"
            ) from error

    def put(self, state: Any, name: str) -> tuple[Path, FileEntry]:
        """Write state there, only for now: not synced. Return where, and what was written."""
        path = self.folder / name
        return path, write_state(state, path, sync=False)

    def empty(self) -> None:
        """Delete what is there."""
        for path in self.folder.iterdir():
            path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Delete the folder; a rank that is killed can't, and leaves that to the next attempt on its node."""
        shutil.rmtree(self.folder, ignore_errors=True)
