"""Checkpoints of a training: tables, and what the program keeps beside them, of the same step."""
