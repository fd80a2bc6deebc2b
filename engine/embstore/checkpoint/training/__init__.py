"""Checkpoints of a training: tables and the program's own files, as of the same step."""
