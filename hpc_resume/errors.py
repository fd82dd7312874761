"""What can go wrong, sorted by whose move it is.

    HpcResumeError
    ├── ConfigError       the user's: a setting, a path, a file they wrote
    ├── RunBusyError      nobody's: another supervisor owns the run
    ├── ClusterError      the cluster's: it did not answer, or refused
    ├── JournalError      the disk's: the record of a run cannot be read or written
    ├── CheckpointError   the saved state's: it can't be written, or not be loaded
    │   ├── DamagedError  it is not what was saved, as its digests prove
    │   └── MismatchError it is whole, but of another model, another version, another kind
    ├── DeviceError       the node's: it has not the GPUs that a rank needs
    ├── ExportError       the disk's: the result of a run cannot be written
    ├── DivergedError     the training's: its weights are not finite
    └── TrainerError      the framework's, or the data's

A message says what was tried, what was found and what to do. The command line prints it as one line and exits
with the class's `exit_code`; only `-v` shows a traceback.
"""


class HpcResumeError(Exception):
    """Root of all errors that this package raises on purpose."""

    exit_code = 1


class ConfigError(HpcResumeError):
    """Something that the user wrote cannot be used as it is."""

    exit_code = 2


class RunBusyError(HpcResumeError):
    """Another supervisor owns the run, or may own it."""

    exit_code = 3


class ClusterError(HpcResumeError):
    """The cluster did not answer, or refused."""

    exit_code = 3


class JournalError(HpcResumeError):
    """The record of a run cannot be read or written."""


class CheckpointError(HpcResumeError):
    """No saved state can be loaded, or what is there is not of this run."""


class DamagedError(CheckpointError):
    """A checkpoint is provably not what was saved: a file is missing, or differs from its digest."""


class MismatchError(CheckpointError):
    """A checkpoint is whole, but can't be loaded into what is there; trying again would not help."""

    exit_code = 2


class DeviceError(HpcResumeError):
    """A node does not have the GPUs that its ranks were promised."""


class ExportError(HpcResumeError):
    """The result of a run cannot be written."""


class DivergedError(HpcResumeError):
    """The weights of a run are not finite, so they are no result."""


class TrainerError(HpcResumeError):
    """The model, its data or the framework cannot be used as configured."""

    exit_code = 2
