"""Files of a checkpoint: written once, digested on the way, durable before anybody hears of them."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import xxhash

from hpc_resume.checkpoints.catalog import FileEntry

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

    def finish(self) -> FileEntry:
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


def write_state(state: Any, path: Path) -> FileEntry:
    """Write state as `torch.save` does, and make it durable; `torch.load` reads it.

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
        return file.finish()


def copy_file(source: Path, target: Path) -> FileEntry:
    """Copy a file, and make the copy durable.

    Raises:
        OSError: a disk refused.
    """
    with source.open("rb", buffering=0) as reader, _digesting(target) as file:
        buffer = memoryview(bytearray(_CHUNK))
        while count := reader.readinto(buffer):
            file.write(buffer[:count])
        return file.finish()


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
            self._cleanup()


class Staging:
    """A folder on a disk of this node, where one rank's files wait to be copied to where all nodes see them."""

    def __init__(self, parent: str, run: Path, rank: int) -> None:
        """Make this rank's own folder under `parent`, whose variables are filled in, and empty it.

        What a killed attempt of the same run left behind there goes.

        Raises:
            OSError: that disk refused.
        """
        key = xxhash.xxh3_64_hexdigest(str(run).encode())
        self.folder = Path(os.path.expandvars(parent)) / f"hpc_resume-{key}-rank-{rank:04d}"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, mode=0o700)

    def put(self, state: Any, name: str) -> Path:
        """Write state there, only for now: neither synced nor digested."""
        path = self.folder / name
        torch.save(state, path)
        return path

    def empty(self) -> None:
        """Delete what is there."""
        for path in self.folder.iterdir():
            path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Delete the folder; a rank that is killed can't, and leaves that to the next attempt on its node."""
        shutil.rmtree(self.folder, ignore_errors=True)
