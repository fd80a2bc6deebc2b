"""Access to Ray."""
