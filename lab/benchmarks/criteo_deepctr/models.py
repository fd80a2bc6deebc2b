"""WDL, DeepFM and xDeepFM over two tables: one of rows, and one of a linear weight per key.

As in DeepCTR, which OpenEmbedding's benchmark uses, numbers go into the linear part and the deep
part, and only categorical features have rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import keras
from keras import layers, ops

import embstore as es
import embstore.keras
from benchmarks.criteo_deepctr.interactions import (
    CompressedInteraction,
    PairwiseInteraction,
)
from benchmarks.criteo_deepctr.options import ModelOptions, TableOptions
from pmemlab.workloads.batches import CATEGORICAL_COLUMNS, DENSE_COLUMNS

__all__ = ["MODELS", "make_model"]

_ROWS_STDDEV: Final = 1e-4  # as in DeepCTR


def make_model(options: ModelOptions, tables: TableOptions) -> Any:
    """Return a Keras model: [keys int64 (n, 26), numbers float32 (n, 13)] -> chance of a click (n,
    1).

    keys: from `feature_keys`, any int64. The variables `rows` and `linear_rows` are embstore's.
    Raises KeyError for an unknown name, and what `embstore.keras.Embedding` does.
    """
    interactions = MODELS[options.name]
    keys = keras.Input((len(CATEGORICAL_COLUMNS),), dtype="int64", name="keys")
    numbers = keras.Input((len(DENSE_COLUMNS),), dtype="float32", name="numbers")
    linear_start = es.initializers.Zeros()
    linear_rows = _table("linear_rows", 1, linear_start, tables)(keys)  # (n, 26, 1)
    start = es.initializers.RandomNormal(0.0, _ROWS_STDDEV, options.seed)
    rows = _table("rows", options.embedding_dim, start, tables)(keys)  # (n, 26, dim)
    logits = [
        ops.sum(linear_rows, axis=1),
        layers.Dense(1, name="linear")(numbers),
        _deep(rows, numbers, options.units),
        *interactions(rows, options),
    ]
    clicks = layers.Activation("sigmoid", name="clicks")(layers.Add()(logits))
    return keras.Model([keys, numbers], clicks, name=options.name.lower())


def _table(name: str, dim: int, start: Any, options: TableOptions) -> Any:
    ev_option = es.EmbeddingVariableOption(storage_option=options.storage)
    where: dict[str, Any] = {} if options.shards is None else {"shards": options.shards}
    return es.keras.Embedding(None, dim, start, ev_option=ev_option, name=name, **where)


def _deep(rows: Any, numbers: Any, hidden_units: Sequence[int]) -> Any:
    hidden = layers.Concatenate()([layers.Flatten()(rows), numbers])
    for number, units in enumerate(hidden_units, start=1):
        hidden = layers.Dense(units, activation="relu", name=f"hidden_{number}")(hidden)
    return layers.Dense(1, use_bias=False, name="deep")(hidden)


def _wdl(rows: Any, options: ModelOptions) -> list[Any]:
    """Cheng et al., "Wide & Deep Learning for Recommender Systems", DLRS 2016, equation 3."""
    del rows, options
    return []


def _deep_fm(rows: Any, options: ModelOptions) -> list[Any]:
    """Guo et al., IJCAI 2017, equations 1 and 2."""
    del options
    return [PairwiseInteraction(name="pairwise")(rows)]


def _x_deep_fm(rows: Any, options: ModelOptions) -> list[Any]:
    """Lian et al., KDD 2018, section 3.3."""
    maps = CompressedInteraction(options.cin_maps, name="cin")(rows)
    return [layers.Dense(1, use_bias=False, name="of_maps")(maps)]


MODELS: Final[Mapping[str, Callable[[Any, ModelOptions], list[Any]]]] = {
    "WDL": _wdl,
    "DeepFM": _deep_fm,
    "xDeepFM": _x_deep_fm,
}
