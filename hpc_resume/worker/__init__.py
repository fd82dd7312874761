"""One training process: `python -m hpc_resume.worker RUN_FOLDER ATTEMPT CLAIM`, started once per rank."""
