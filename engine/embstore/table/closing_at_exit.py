"""Closes the variables that are alive when the interpreter ends.

Otherwise kept rows that are still in memory would be lost, and files of other rows would stay.
"""

from __future__ import annotations

import atexit
import sys
import traceback
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from embstore.variable import EmbeddingVariable

__all__ = ["close_all", "close_at_exit"]


_open: weakref.WeakSet[EmbeddingVariable] = weakref.WeakSet()


def close_at_exit(variable: EmbeddingVariable) -> None:
    """Has `variable` closed when the interpreter ends, if it is still alive then. It may have been
    closed before: a second close() does nothing.
    """
    _open.add(variable)


@atexit.register
def close_all() -> None:
    for variable in list(_open):
        try:
            variable.close()
        except Exception:
            # Printed, since no caller is left that could catch it.
            print(f"embstore: {variable.name} wasn't closed as the program ended:", file=sys.stderr)
            traceback.print_exc()
