"""Opening log files: plain or compressed by gzip, in whatever encoding, and never what is no text."""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TextIO, cast

from hpc_resume.errors import ConfigError
from hpc_resume.loss_logs.curve import NoCurveError

HEAD_CHARACTERS = 65536

_GZIP = b"\x1f\x8b"
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_HEAD_BYTES = 8192


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """Open a text log; what is not valid UTF-8 in it is replaced, since no number is.

    A carriage return ends a line too: progress bars write them.

    Raises:
        NoCurveError: the file is empty.
        ConfigError: it can't be read, is cut off inside of its compression, or is no text.
    """
    try:
        with path.open("rb") as file:
            data = _unpacked(file)
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
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ConfigError(f"the compressed file is damaged or cut off ({error}); copy it again") from error
    except OSError as error:
        raise ConfigError(f"it can't be read: {error.strerror or error}") from error


def _unpacked(file: BinaryIO) -> BinaryIO:
    start = file.read(len(_GZIP))
    file.seek(0)
    return cast("BinaryIO", gzip.GzipFile(fileobj=file)) if start == _GZIP else file


def head_of(path: Path) -> str:
    """Return the beginning of a text log."""
    with open_text(path) as file:
        return file.read(HEAD_CHARACTERS)
