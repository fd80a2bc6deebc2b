"""The Debian release of the images, with its Python and C library."""

from typing import Final

__all__ = ["GLIBC_MINOR", "PYTHON", "SUITE"]

SUITE: Final = "bookworm"
PYTHON: Final = "3.11"
GLIBC_MINOR: Final = 36
"""Minor version of the C library: the newest that wheels may need."""
