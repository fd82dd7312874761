"""Opening log files: plain or compressed by gzip, in whatever encoding, and never what is no text."""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TextIO, cast

from hpc_resume.errors import ConfigError
from hpc_resume.loss_logs.curve import NoCurveError

HEAD_CHARACTERS = 65536

_GZIP = b"\x1f\x8b"
_OTHER_COMPRESSIONS = {
    b"\xfd7zXZ\0": ("xz", "xz -dk"),
    b"\x28\xb5\x2f\xfd": ("zstd", "zstd -d"),
    b"BZh": ("bzip2", "bzip2 -dk"),
    b"PK\x03\x04": ("zip", "unzip"),
}
"""By their first bytes: what it is, and what undoes it."""

_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_HEAD_BYTES = 8192
_CHUNK_BYTES = 1 << 20


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """Open a text log; what is not valid UTF-8 in it is replaced, since no number is.

    A carriage return ends a line too: progress bars write them. A gzip file that is cut off ends with its last whole
    line; `cut_off` tells that.

    Raises:
        NoCurveError: the file is empty.
        ConfigError: it can't be read, is compressed otherwise or damaged, or is no text.
    """
    try:
        with path.open("rb") as file:
            start = file.read(len(max(_OTHER_COMPRESSIONS, key=len)))
            file.seek(0)
            _refuse_other_compressions(start, path)
            data = _unpacked(file) if start.startswith(_GZIP) else file
            head = data.read(_HEAD_BYTES)
            data.seek(0)
            if not head:
                raise NoCurveError("the file is empty")
            encoding = "utf-16" if head.startswith(_UTF_16) else "utf-8-sig"
            if encoding != "utf-16" and b"\0" in head:
                raise ConfigError(
                    "this is a binary file; a text log, CSV, JSON or a TensorBoard event file is expected"
                )
            yield io.TextIOWrapper(data, encoding=encoding, errors="replace")
    except (zlib.error, gzip.BadGzipFile) as error:
        raise ConfigError(f"the compressed file is damaged ({error}); copy it again") from error
    except OSError as error:
        raise ConfigError(f"it can't be read: {error.strerror or error}") from error


def _refuse_other_compressions(start: bytes, path: Path) -> None:
    for mark, (name, undo) in _OTHER_COMPRESSIONS.items():
        if start.startswith(mark):
            raise ConfigError(f"it is compressed by {name}; decompress it first: {undo} {path}")


def _unpacked(file: BinaryIO) -> BinaryIO:
    """Return what is in a gzip file; if that is cut off, its whole lines, since half a number is another number."""
    if not _is_cut_off(file):
        return cast("BinaryIO", gzip.GzipFile(fileobj=file))
    pieces = []
    packed = gzip.GzipFile(fileobj=file)
    with suppress(EOFError):
        while piece := packed.read1(_CHUNK_BYTES):
            pieces.append(piece)
    found = b"".join(pieces)
    lines = found[: found.rfind(b"\n") + 1]
    if not lines:
        raise ConfigError("the compressed file is cut off in its first line; copy it again")
    return io.BytesIO(lines)


def _is_cut_off(file: BinaryIO) -> bool:
    """Tell whether a gzip file ends before its compression does; leaves the file at its beginning."""
    packed = gzip.GzipFile(fileobj=file)
    try:
        while packed.read1(_CHUNK_BYTES):
            pass
    except EOFError:
        return True
    finally:
        file.seek(0)
    return False


def cut_off(path: Path) -> bool:
    """Tell whether a file is compressed by gzip and cut off, so that only its beginning can be read."""
    with path.open("rb") as file:
        packed = file.read(len(_GZIP)) == _GZIP
        file.seek(0)
        return packed and _is_cut_off(file)


def head_of(path: Path) -> str:
    """Return the beginning of a text log."""
    with open_text(path) as file:
        return file.read(HEAD_CHARACTERS)
