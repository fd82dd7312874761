"""One training process: `python -m hpc_resume.worker RUN_FOLDER ATTEMPT`, started once per rank."""
