"""What the images' Debian has."""

from typing import Final

__all__ = ["GLIBC_MINOR", "PYTHON", "SUITE"]

SUITE: Final = "bookworm"
PYTHON: Final = "3.11"
GLIBC_MINOR: Final = 36
"""Of the C library: the newest that wheels may need."""
