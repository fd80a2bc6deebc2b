"""Saves and restores: `save`, `save_incremental` and `restore` of `embstore`."""
