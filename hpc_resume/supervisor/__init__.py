"""The plain Python process that owns a run: claim, reconcile, decide, launch, watch, and again.

It never imports torch, so that it stays responsive whatever the training does, and it keeps no state of its own:
whoever replaces it finds everything in the journal.
"""

from hpc_resume.supervisor.supervise import supervise

__all__ = ["supervise"]
