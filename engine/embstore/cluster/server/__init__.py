"""The servers: processes that hold shards, and where they are."""
