"""Feature columns over embedding variables; names and arguments are DeepRec's.

column = feature_column.categorical_column_with_embedding("item", dtype=np.int64)
weights = feature_column.embedding_column(column, dimension=16)
features = {"item": feature_column.SparseTensor(indices, values, dense_shape)}
rows = feature_column.input_layer(features, [weights])     # a graph.Tensor
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from embstore import _checks
from embstore.errors import InvalidArgumentError
from embstore.initializers import Initializer
from embstore.options import EmbeddingVariableOption
from embstore.tensorflow1 import graph

__all__ = [
    "CategoricalColumn",
    "EmbeddingColumn",
    "SparseTensor",
    "categorical_column_with_embedding",
    "embedding_column",
    "input_layer",
    "sparse_column_with_embedding",
]

COMBINERS = ("mean", "sqrtn", "sum")


class SparseTensor:
    """Features of a batch, some or none an example.

    indices: int64 (n, 2): the example, and the position in it.
    values: (n,), what is there.
    dense_shape: (examples, positions).
    """

    def __init__(
        self, indices: graph.Operand, values: graph.Operand, dense_shape: graph.Operand
    ) -> None:
        self.indices = graph.as_tensor(indices)
        self.values = graph.as_tensor(values)
        self.dense_shape = graph.as_tensor(dense_shape)


@dataclass(frozen=True)
class CategoricalColumn:
    """Which feature, and how the variable that has its rows is made."""

    key: str
    dtype: np.dtype[Any]
    partition_num: int
    ev_option: EmbeddingVariableOption | None


@dataclass(frozen=True, eq=False)
class EmbeddingColumn:
    """A feature's rows, combined by example."""

    categorical_column: CategoricalColumn
    combiner: str
    variable: graph.GraphVariable

    @property
    def name(self) -> str:
        return f"{self.categorical_column.key}_embedding"


def categorical_column_with_embedding(
    key: str,
    dtype: DTypeLike = np.str_,
    partition_num: int | None = None,
    ev_option: EmbeddingVariableOption | None = None,
) -> CategoricalColumn:
    """The feature `key`, whose values are keys of an embedding variable.

    dtype: np.int64 or np.int32; or strings, which become the first 8 bytes of their BLAKE2b
        digest.
    partition_num: of the variable; 1 where it isn't given.
    """
    if not isinstance(key, str) or not key:
        raise InvalidArgumentError(f"key must be a string that isn't empty, got {key!r}")
    kind = np.dtype(dtype)
    if kind.kind not in "OSU" and kind not in (np.dtype(np.int64), np.dtype(np.int32)):
        raise InvalidArgumentError(f"dtype must be int64, int32 or a string type, got {kind}")
    partitions = 1 if partition_num is None else partition_num
    _checks.integer("partition_num", partitions, at_least=1)
    return CategoricalColumn(key, kind, partitions, ev_option)


def sparse_column_with_embedding(
    column_name: str,
    dtype: DTypeLike = np.str_,
    partition_num: int | None = None,
    ev_option: EmbeddingVariableOption | None = None,
) -> CategoricalColumn:
    """`categorical_column_with_embedding` by its older name."""
    return categorical_column_with_embedding(column_name, dtype, partition_num, ev_option)


def embedding_column(
    categorical_column: CategoricalColumn | None = None,
    dimension: int = 0,
    combiner: str = "mean",
    initializer: Initializer | None = None,
    *,
    sparse_id_column: CategoricalColumn | None = None,
) -> EmbeddingColumn:
    """Rows of `dimension` values for a column, those of an example combined.

    combiner: "mean", "sqrtn" (the sum over the square root of the number) or "sum".
    initializer: as for `get_embedding_variable`.
    sparse_id_column: what the older interface calls `categorical_column`.
    """
    column = categorical_column if sparse_id_column is None else sparse_id_column
    if not isinstance(column, CategoricalColumn):
        raise InvalidArgumentError(
            "categorical_column must come from categorical_column_with_embedding, "
            f"got {type(column).__name__}"
        )
    if combiner not in COMBINERS:
        raise InvalidArgumentError(f"combiner must be one of {COMBINERS}, got {combiner!r}")
    _checks.integer("dimension", dimension, at_least=1)
    variable = graph.GraphVariable(
        f"{column.key}_embedding",
        dimension,
        initializer=initializer,
        ev_option=column.ev_option,
        partition_num=column.partition_num,
    )
    return EmbeddingColumn(column, combiner, variable)


def input_layer(
    features: Mapping[str, SparseTensor], feature_columns: Sequence[EmbeddingColumn]
) -> graph.Tensor:
    """float32 (examples, dimensions): the columns' combined rows side by side, by column name.

    An example without a value of a feature has zeros there.
    """
    columns = [feature_columns] if isinstance(feature_columns, EmbeddingColumn) else feature_columns
    if not columns:
        raise InvalidArgumentError("feature_columns must hold at least one column")
    parts = []
    for column in sorted(columns, key=lambda column: column.name):
        key = column.categorical_column.key
        feature = features.get(key)
        if not isinstance(feature, SparseTensor):
            raise InvalidArgumentError(
                f"features[{key!r}] must be a SparseTensor, got {type(feature).__name__}"
            )
        ids = _Ids(feature, column.categorical_column)
        rows = graph.embedding_lookup(column.variable, ids)
        parts.append(_Combine(rows, feature, column))
    return parts[0] if len(parts) == 1 else graph.concat(parts, axis=1, name="input_layer")


class _Ids(graph.Tensor):
    """int64 (n,), once the feature was found to be what it should be."""

    def __init__(self, feature: SparseTensor, column: CategoricalColumn) -> None:
        inputs = (feature.indices, feature.values, feature.dense_shape)
        super().__init__(*inputs, name=f"{column.key}_ids")
        self._column = column

    def compute(self, run: graph.Run, /) -> NDArray[Any]:
        indices, values, dense_shape = (run[x] for x in self.inputs)
        key, dtype = self._column.key, self._column.dtype
        _check_sparse(key, indices, values, dense_shape)
        if dtype.kind in "OSU":
            return _keys_of_strings(key, values)
        if not np.can_cast(values.dtype, np.int64):
            raise InvalidArgumentError(
                f"features[{key!r}] must hold {dtype} values, got {values.dtype}"
            )
        return values.astype(np.int64)


class _Combine(graph.Tensor):
    """Rows (n, dim) -> (examples, dim)."""

    def __init__(self, rows: graph.Tensor, feature: SparseTensor, column: EmbeddingColumn) -> None:
        super().__init__(rows, feature.indices, feature.dense_shape, name=column.name)
        self._combiner = column.combiner

    def compute(self, run: graph.Run, /) -> NDArray[Any]:
        rows, indices, dense_shape = (run[x] for x in self.inputs)
        combined = np.zeros((int(dense_shape[0]), rows.shape[1]), np.float32)
        np.add.at(combined, indices[:, 0], rows)
        return combined / self._divisors(indices, len(combined))

    def backward(self, run: graph.Run, gradient: NDArray[Any], /) -> Sequence[NDArray[Any]]:
        indices = run[self.inputs[1]]
        return [(gradient / self._divisors(indices, len(gradient)))[indices[:, 0]]]

    def _divisors(self, indices: NDArray[np.int64], examples: int) -> NDArray[np.float32]:
        """(examples, 1)"""
        if self._combiner == "sum":
            return np.ones((1, 1), np.float32)
        counts = np.bincount(indices[:, 0], minlength=examples).clip(min=1).astype(np.float32)
        return (np.sqrt(counts) if self._combiner == "sqrtn" else counts)[:, np.newaxis]


def _check_sparse(
    key: str, indices: NDArray[Any], values: NDArray[Any], dense_shape: NDArray[Any]
) -> None:
    if values.ndim != 1 or indices.shape != (len(values), 2) or dense_shape.shape != (2,):
        raise InvalidArgumentError(
            f"features[{key!r}] must have indices of (n, 2), values of (n,) and a dense_shape of "
            f"(2,), got {indices.shape}, {values.shape} and {dense_shape.shape}"
        )
    if indices.dtype.kind not in "iu" or dense_shape.dtype.kind not in "iu":
        raise InvalidArgumentError(f"features[{key!r}] must have integer indices and dense_shape")
    outside = ((indices < 0) | (indices >= dense_shape)).any(axis=1)
    if outside.any():
        raise InvalidArgumentError(
            f"features[{key!r}]: the index {indices[outside][0].tolist()} lies outside of the "
            f"dense_shape {dense_shape.tolist()}"
        )


def _keys_of_strings(key: str, values: NDArray[Any]) -> NDArray[np.int64]:
    if values.dtype.kind not in "OSU":
        raise InvalidArgumentError(
            f"features[{key!r}] must hold strings, got {values.dtype}; for ids give the column "
            "dtype=numpy.int64"
        )
    distinct, where = np.unique(values, return_inverse=True)
    keys = [
        int.from_bytes(
            hashlib.blake2b(_as_bytes(text), digest_size=8).digest(), "little", signed=True
        )
        for text in distinct
    ]
    return np.array(keys, np.int64)[where.reshape(-1)]


def _as_bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else str(text).encode()
