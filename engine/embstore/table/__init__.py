"""A table as Python has it: its shards, how one is made, and what batches are checked for."""
