"""Checkpoints that leave rows where they lie, in pools of persistent memory: `embstore.persist`."""
