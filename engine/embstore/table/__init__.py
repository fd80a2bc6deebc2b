"""A table in Python: its shards, how variables are made, and the checks of arguments."""
