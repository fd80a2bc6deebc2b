"""The name of the folder with the rows of the checkpoint that is being written."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import numpy as np

from embstore.errors import InvalidArgumentError

__all__ = ["current_rows_folder", "using_rows_folder"]

# Global, since the operations of a graph don't know which saver runs them. One save at a time.
_save_lock = threading.Lock()
_folder_name: str | None = None


def current_rows_folder() -> np.bytes_:
    """Returns the name of the folder with the rows of the checkpoint that is being written."""
    if _folder_name is None:
        raise InvalidArgumentError(
            "rows aren't saved by this saver: make it by tf.train.Saver after the import of "
            "embstore.deeprec"
        )
    return np.bytes_(_folder_name.encode())


@contextlib.contextmanager
def using_rows_folder(name: str) -> Iterator[None]:
    """Sets the folder name of the rows for the block's save. Other saves wait."""
    global _folder_name
    with _save_lock:
        _folder_name = name
        try:
            yield
        finally:
            _folder_name = None
