"""OpenEmbedding's layer over an embedding variable."""

from __future__ import annotations

from typing import Any

import keras

from embstore.errors import InvalidArgumentError
from embstore.keras.embedding import Embedding as Table
from embstore.keras.table import check_vocabulary_size
from embstore.openembedding.flags import flags
from embstore.openembedding.placement import TableNeed, placements

__all__ = ["Embedding"]


@keras.saving.register_keras_serializable("embstore.openembedding")
class Embedding(Table):
    """A layer that looks up ids of any shape; its output is float of ids.shape + (output_dim,). The
    flags determine where its rows are kept.

    input_dim: ids are from 0 to input_dim - 1; -1 or None: any int64.
    embeddings_regularizer: used as activity_regularizer with explicit=False, else refused.
    embeddings_constraint: ignored with explicit=False, else refused.
    mask_zero: as in Keras. input_length: has no effect; Keras 3 has no such argument.
    num_shards: number of partitions of the table, on the servers; None or -1: one on each server,
        and one if tables are kept in this process.
    sparse_as_dense: must be False; use keras.layers.Embedding for a table that workers hold.
    Other arguments, such as optimizer and ev_option, are those of `embstore.keras.Embedding`.

    Raises InvalidArgumentError and UnsupportedError, also for flags.
    """

    def __init__(
        self,
        input_dim: int | None,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        embeddings_regularizer: Any = None,
        activity_regularizer: Any = None,
        embeddings_constraint: Any = None,
        mask_zero: bool = False,
        input_length: Any = None,
        *,
        num_shards: int | None = None,
        sparse_as_dense: bool = False,
        explicit: bool = True,
        **kwargs: Any,
    ) -> None:
        del input_length
        if sparse_as_dense and check_vocabulary_size("input_dim", input_dim) is not None:
            raise InvalidArgumentError(
                f"sparse_as_dense: write keras.layers.Embedding({input_dim}, {output_dim}) for a "
                "table that this process holds and trains densely"
            )
        if explicit:
            given = {
                "embeddings_regularizer": embeddings_regularizer,
                "embeddings_constraint": embeddings_constraint,
            }
            kwargs.update({name: value for name, value in given.items() if value is not None})
        elif activity_regularizer is None:
            activity_regularizer = embeddings_regularizer
        super().__init__(
            input_dim,
            output_dim,
            embeddings_initializer,
            mask_zero=mask_zero,
            activity_regularizer=activity_regularizer,
            **kwargs,
        )
        self.num_shards = num_shards
        self._is_placed_by_flags = not {"ev_option", "partition_num", "shards"} & set(kwargs)
        place_by_flags([self])

    @property
    def is_placed_by_flags(self) -> bool:
        """True if the flags, and no arguments of its own, determine where its rows are kept."""
        return self._is_placed_by_flags


def place_by_flags(layers: list[Any]) -> None:
    """Places the layers' rows as the flags say, as the tables of one model, except for layers that
    have rows already or arguments of their own.
    """
    chosen = [layer for layer in layers if _can_be_placed(layer)]
    if not chosen:
        return
    needs = [
        TableNeed(layer.name, layer.output_dim, layer.input_dim, layer.num_shards)
        for layer in chosen
    ]
    for layer, placement in zip(chosen, placements(needs, flags), strict=True):
        layer.place(placement.storage, placement.partition_num, placement.shards)


def _can_be_placed(layer: Any) -> bool:
    return isinstance(layer, Embedding) and layer.is_placed_by_flags and not layer.table.is_made
