"""`python -m hpc_resume`."""

from hpc_resume.cli.main import main

main()
