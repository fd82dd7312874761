"""The command line: one verb per file. Results go to stdout, talk to stderr; nothing asks questions.

Whatever is heavy is imported inside the verbs, so that `--help` answers at once.
"""
