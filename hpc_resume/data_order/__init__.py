"""Which sample comes at which position, whatever has happened to the run.

The rule of this package: the order is a function of the data set's size, the seed and the segments, computed
for one position at a time. It knows no clock, no file, no rank and no history: nothing is stored, nothing is
walked, and so nothing can be lost with a node. `Window` and `Segment` say what an incident did to the order,
`DataOrder` answers what comes where, and `rank_share` deals one optimizer step out to the ranks.

Segments are only ever appended, each acting on the order before it, also where training goes back to before an
earlier one. Were that one dropped instead, the positions of a window, which were read off the order that was in
force at the incident, would name other samples; and falling back to an older checkpoint would undo what an
incident asked for.
"""

from __future__ import annotations

from hpc_resume.data_order.order import DataOrder, rank_share
from hpc_resume.data_order.permutation import Permutation
from hpc_resume.data_order.segment import Segment, Window

__all__ = ["DataOrder", "Permutation", "Segment", "Window", "rank_share"]
