"""The servers, which are processes that hold shards, and the choice of a server for each shard."""
