"""Checkpoints whose rows stay in place in pools of persistent memory: `embstore.persist`."""
