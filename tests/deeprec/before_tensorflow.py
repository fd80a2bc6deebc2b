"""Imports embstore.deeprec before TensorFlow, as a program may.

conftest.py imports this first. Another process to show the same would take 4 s of CPU.
"""

from __future__ import annotations

import importlib.util
import sys

__all__ = ["IMPORTED"]

IMPORTED = importlib.util.find_spec("tensorflow") is not None and "tensorflow" not in sys.modules
if IMPORTED:
    import embstore.deeprec  # noqa: F401
