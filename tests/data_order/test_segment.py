"""Windows and segments that can't be."""

from __future__ import annotations

import pytest

from hpc_resume.data_order import Segment, Window


@pytest.mark.parametrize(("start", "end"), [(-1, 5), (5, 5), (6, 5)])
def test_a_window_that_holds_nothing_is_refused(start: int, end: int) -> None:
    with pytest.raises(ValueError, match="before its end"):
        Window(start, end)


def test_a_segment_before_the_data_is_refused() -> None:
    with pytest.raises(ValueError, match="must start at 0 or later"):
        Segment(-1, 1)


def test_number_0_stands_for_no_segment() -> None:
    with pytest.raises(ValueError, match="must be 1 or more"):
        Segment(0, 0)
