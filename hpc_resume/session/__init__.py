"""What a training loop talks to: `resume`, `batches`, `step`.

The session reduces loss, health and the wish to stop over all ranks in one small collective, watches the loss one
step late, saves when it is due, and tells the loop at a step edge when it must leave.
"""

from hpc_resume.session.session import Session

__all__ = ["Session"]
