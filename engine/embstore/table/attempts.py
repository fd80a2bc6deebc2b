"""Runs several actions so that the failure of one stops no other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from embstore.errors import EmbStoreError

__all__ = ["Attempts"]


class Attempts:
    """Keeps the first error of several `attempt()` scopes until `raise_first()` raises it."""

    def __init__(self) -> None:
        self._first: EmbStoreError | None = None

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        try:
            yield
        except EmbStoreError as error:
            self._first = self._first or error

    def raise_first(self) -> None:
        if self._first is not None:
            raise self._first
