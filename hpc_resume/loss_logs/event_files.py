"""TensorBoard event files, through the `tensorboard` package, which is optional."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hpc_resume.errors import ConfigError
from hpc_resume.loss_logs import names
from hpc_resume.loss_logs.curve import LoggedPoint, LossCurve, NoCurveError
from hpc_resume.loss_logs.lives import make_curves
from hpc_resume.loss_logs.numbers import step_number

Scalars = dict[str, list[tuple[int, float]]]
"""Step and value of every value of every scalar, by its tag, as they were written."""

_MARK = "tfevents"
_MOST_NAMED = 8


def is_event_file(path: Path) -> bool:
    """Tell by its name whether this is a TensorBoard event file."""
    return _MARK in path.name


def read_event_files(paths: Sequence[Path], name: str) -> list[LossCurve]:
    """Read event files of one training, in the order in which they were written, as one log.

    A file that is damaged, or cut off as by a kill, is read up to there; a note says so.

    Raises:
        NoCurveError: they have no scalar that is a training loss.
        ConfigError: `tensorboard` is not installed, or a file can't be read.
    """
    found = [_read(path) for path in paths]
    scalars = [each for each, _ in found]
    tags = list(dict.fromkeys(tag for each in scalars for tag in each))
    training = [tag for tag in tags if not names.is_evaluation(tag)]
    losses = names.ranked(training, names.LOSS) or names.like_a_loss(training)
    if not losses:
        few = ", ".join(tags[:_MOST_NAMED]) + (", ..." if len(tags) > _MOST_NAMED else "")
        raise NoCurveError(f"there is no training loss in it, only the scalars {few}" if tags else "it has no scalars")
    norm = next(iter(names.ranked(training, names.GRAD_NORM)), None)
    notes = [f"the loss is the scalar {losses[0]!r}", *(note for _, note in found if note)]
    curves = make_curves(name, (point for each in scalars for point in _points(each, losses[0], norm)), notes)
    if not curves:
        raise NoCurveError(f"the scalar {losses[0]!r} has no values with a step from 0 on")
    return curves


def _points(scalars: Scalars, loss: str, norm: str | None) -> Iterable[LoggedPoint]:
    norms = dict(scalars.get(norm, ())) if norm is not None else {}
    for step, value in scalars.get(loss, ()):
        if step_number(step) is not None:
            yield LoggedPoint(step=step, loss=value, grad_norm=norms.get(step))


def _read(path: Path) -> tuple[Scalars, str | None]:
    """Return the scalars of one file, and what is to be said about it."""
    scalars: Scalars = {}
    events = 0
    try:
        whole, torn = _records_in(path)
        for event in _events(path):
            events += 1
            for value in event.summary.value:
                number = _scalar(value)
                if number is not None:
                    scalars.setdefault(value.tag, []).append((event.step, number))
    except OSError as error:
        raise ConfigError(f"it can't be read: {error.strerror or error}") from error
    except (ConfigError, MemoryError):
        raise
    except Exception as error:
        # The library lets through whatever its parser raises when the bytes are no events.
        raise ConfigError(f"it can't be read as a TensorBoard event file ({error!r}); is it damaged?") from error
    if events < whole:
        if not events:
            raise ConfigError("it can't be read as a TensorBoard event file: its first record is damaged")
        return scalars, f"{path.name} is damaged after {events} of {whole} records; what came before is used"
    if torn and not events:
        raise ConfigError("it can't be read as a TensorBoard event file: it is no such file, or was cut off at once")
    return scalars, f"the last record of {path.name} is cut off and left out" if torn else None


def _events(path: Path) -> Iterator[Any]:
    # Not the EventAccumulator: it does not tell how many events it could read, and keeps also what is not wanted.
    try:
        from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
    except ImportError as error:
        raise ConfigError(
            "TensorBoard event files need the tensorboard package, which is not installed: "
            "python -m pip install tensorboard"
        ) from error
    yield from LegacyEventFileLoader(str(path)).Load()


def _scalar(value: Any) -> float | None:
    """Return the value of a scalar in either of the two forms that TensorBoard has; None for anything else."""
    form = value.WhichOneof("value")
    if form == "simple_value":
        return float(value.simple_value)
    if form != "tensor" or value.metadata.plugin_data.plugin_name != "scalars":
        return None
    from tensorboard.util.tensor_util import make_ndarray

    numbers = make_ndarray(value.tensor)
    return float(numbers.item()) if numbers.size == 1 and numbers.dtype.kind in "fiu" else None


def _records_in(path: Path) -> tuple[int, bool]:
    """Count the whole records of a file by their lengths, and tell whether it ends inside of one.

    A record is its length in 8 bytes, 4 bytes of checksum, the data, and 4 bytes of checksum.
    """
    records, at, size = 0, 0, path.stat().st_size
    if not size:
        raise NoCurveError("the file is empty")
    with path.open("rb") as file:
        while at + 12 <= size:
            file.seek(at)
            (length,) = struct.unpack("<Q", file.read(8))
            if at + 16 + length > size:
                break
            at += 16 + length
            records += 1
    return records, at < size
