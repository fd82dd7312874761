"""The record of a run: append-only JSONL files, one per writer, and the folder that they lie in.

Nobody edits or truncates a file here. A writer creates its file exclusively and syncs every record; a reader
tolerates a torn last line and keeps events of kinds that it doesn't know.
"""
