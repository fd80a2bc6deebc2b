"""Makes tables that are looked up for the first time, with the optimizer of a compiled model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from embstore.errors import UnsupportedError
from embstore.keras.private import called_model, optimizer_of

if TYPE_CHECKING:
    from embstore.keras.rows import Rows
    from embstore.keras.table import Table

__all__ = ["make_with_model_optimizer"]


def make_with_model_optimizer(look_ups: Iterable[tuple[Table, Rows]]) -> None:
    """Makes tables that aren't made yet with the slots of the optimizer of the model that is being
    called, if it is compiled. Persisted rows have slots, so they fit no table without.
    """
    unmade = [table for table, rows in look_ups if not table.is_made and rows.trainable]
    optimizer = optimizer_of(called_model()) if unmade else None
    if optimizer is None:
        return
    for table in unmade:
        with contextlib.suppress(UnsupportedError):  # the first step raises it
            table.set_model_optimizer(optimizer)
