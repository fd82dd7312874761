"""Training jobs on Slurm that look after themselves."""

__version__ = "0.1.0"
