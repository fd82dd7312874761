"""The rules of recovery: events in, a decision out.

Nothing in this package reads a clock, a file or the environment. `fold` turns the events of a run into its
`History`; `decide` turns a history and the newest event into a `Decision`. Whoever calls records the decision
first and acts on it afterwards.
"""

from hpc_resume.recovery.decide import decide
from hpc_resume.recovery.decisions import RULES, Decision, Plan
from hpc_resume.recovery.history import History, fold
from hpc_resume.recovery.policy import Policy

__all__ = ["RULES", "Decision", "History", "Plan", "Policy", "decide", "fold"]
