"""Waiting for a disk: a shared file system that hiccups for a minute must not end a run that is healthy."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar, cast

from tenacity import before_sleep_log, retry, retry_if_exception_type, stop_after_delay, wait_exponential

from hpc_resume.errors import JournalError

_log = logging.getLogger(__name__)

Function = TypeVar("Function", bound=Callable[..., Any])


def _retry_for(seconds: float) -> Callable[[Function], Function]:
    return cast(
        Callable[[Function], Function],
        retry(
            retry=retry_if_exception_type((OSError, JournalError)),
            wait=wait_exponential(multiplier=0.5, max=30),
            stop=stop_after_delay(seconds),
            before_sleep=before_sleep_log(_log, logging.WARNING),
            reraise=True,
        ),
    )


patiently = _retry_for(600)
"""Decorates what only reads, or writes what may be written again; gives up after ten minutes."""

briefly = _retry_for(60)
"""The same for a rank, whose silence must not look like a hang; gives up after a minute."""
