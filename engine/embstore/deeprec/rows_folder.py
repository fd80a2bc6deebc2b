"""Which folder the checkpoint that is being written has its rows in."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import numpy as np

from embstore.errors import InvalidArgumentError

__all__ = ["rows_saved_in", "saving_rows_in"]

# Of the save that is under way, since operations of a graph don't know which saver runs them.
_one_save = threading.Lock()
_name: str | None = None


def rows_saved_in() -> np.bytes_:
    """The name of the folder that the checkpoint being written has its rows in."""
    if _name is None:
        raise InvalidArgumentError(
            "rows aren't saved by this saver: make it by tf.train.Saver after the import of "
            "embstore.deeprec"
        )
    return np.bytes_(_name.encode())


@contextlib.contextmanager
def saving_rows_in(name: str) -> Iterator[None]:
    """The scope in which the one save that is under way has its rows in the folder of that name."""
    global _name
    with _one_save:
        _name = name
        try:
            yield
        finally:
            _name = None
