"""The name of the folder with the rows of the checkpoint that is being written."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import numpy as np

from embstore.errors import InvalidArgumentError

__all__ = ["rows_saved_in", "saving_rows_in"]

# Global, since the operations of a graph don't know which saver runs them. One save at a time.
_one_save = threading.Lock()
_name: str | None = None


def rows_saved_in() -> np.bytes_:
    """Returns the name of the folder with the rows of the checkpoint that is being written."""
    if _name is None:
        raise InvalidArgumentError(
            "rows aren't saved by this saver: make it by tf.train.Saver after the import of "
            "embstore.deeprec"
        )
    return np.bytes_(_name.encode())


@contextlib.contextmanager
def saving_rows_in(name: str) -> Iterator[None]:
    """Sets the folder name of the rows for the block's save. Other saves wait."""
    global _name
    with _one_save:
        _name = name
        try:
            yield
        finally:
            _name = None
