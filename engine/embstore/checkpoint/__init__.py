"""Saves and restores of variables: `embstore.save`, `save_incremental` and `restore`."""
