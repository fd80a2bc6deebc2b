"""Looks several features up in several tables, like keras-rs's layer of the same name."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops, tree

from embstore.errors import InvalidArgumentError
from embstore.keras.configs import FeatureConfig, TableConfig
from embstore.keras.embedding import Embedding, look_up_layers
from embstore.variable import EmbeddingVariable

__all__ = ["DistributedEmbedding"]


@keras.saving.register_keras_serializable("embstore")
class DistributedEmbedding(keras.layers.Layer):  # type: ignore[misc]
    """A layer that looks features up and combines their rows per sample. Ids and results are
    structures like feature_configs.

    feature_configs: `FeatureConfig`s in any nest of dicts and lists; inputs, weights and results
        have the same structure. Features may share a table.

    ids of shape (batch,) give their rows, (batch, dim). ids of shape (batch, length) give combined
    rows, (batch, dim): the weighted sum; for "mean" divided by the sum of the weights, for "sqrtn"
    by the root of the sum of their squares (0 if the divisor is 0). Weights default to 1; give
    padding the weight 0.

    Each table's own optimizer trains its rows; if that is None, the model's does.
    """

    def __init__(self, feature_configs: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.autocast = False
        self.supports_jit = False
        features = tree.flatten(feature_configs)
        if not features:
            raise InvalidArgumentError("feature_configs must have at least one FeatureConfig")
        for feature in features:
            if not isinstance(feature, FeatureConfig):
                raise InvalidArgumentError(
                    "feature_configs must hold embstore.keras.FeatureConfigs, got "
                    f"{type(feature).__name__}"
                )
        self._features: tuple[FeatureConfig, ...] = tuple(features)

        def structure() -> Any:  # Keras would wrap an attribute
            return feature_configs

        self._structure = structure
        self._tables: list[TableConfig] = []
        for feature in features:
            if feature.table not in self._tables:
                if any(feature.table.name == table.name for table in self._tables):
                    raise InvalidArgumentError(
                        f"feature_configs: two tables are named {feature.table.name}; features "
                        "that share a table have the same TableConfig object"
                    )
                self._tables.append(feature.table)
        self._embeddings = [_embedding(table, self.dtype_policy) for table in self._tables]

    @property
    def variables_by_table(self) -> dict[str, EmbeddingVariable]:
        """Each table's `embstore.EmbeddingVariable` by the table's name."""
        return {embedding.name: embedding.variable for embedding in self._embeddings}

    @property
    def serves(self) -> bool:
        """Like `Embedding.serves`, for all tables."""
        return all(embedding.serves for embedding in self._embeddings)

    @serves.setter
    def serves(self, value: bool) -> None:
        for embedding in self._embeddings:
            embedding.serves = value

    def embedding_of_features(self) -> list[Embedding]:
        """Returns each feature's `Embedding`, in the order of `keras.tree.flatten`."""
        return [self._embedding_of(feature) for feature in self._features]

    def build(self, input_shapes: Any = None) -> None:
        del input_shapes  # a row's shape doesn't depend on them
        for embedding in self._embeddings:
            embedding.build()
        self.built = True

    def call(self, inputs: Any, weights: Any = None, training: bool | None = None) -> Any:
        structure = self._structure()
        _check_same("inputs", structure, inputs)
        flat_weights: list[Any] = [None] * len(self._features)
        if weights is not None:
            _check_same("weights", structure, weights)
            flat_weights = tree.flatten(weights)
        flat_ids = tree.flatten(inputs)
        for feature, ids in zip(self._features, flat_ids, strict=True):
            _check_input(feature, ids.shape)
        look_ups = list(zip(self.embedding_of_features(), flat_ids, strict=True))
        rows = look_up_layers(look_ups, training)
        combined = map(_combine, self._features, flat_ids, rows, flat_weights)
        return tree.pack_sequence_as(structure, list(combined))

    def _embedding_of(self, feature: FeatureConfig) -> Embedding:
        return self._embeddings[self._tables.index(feature.table)]

    def compute_output_spec(
        self, inputs: Any, weights: Any = None, training: bool | None = None
    ) -> Any:
        del weights, training
        structure = self._structure()
        _check_same("inputs", structure, inputs)
        specs = []
        for feature, ids in zip(self._features, tree.flatten(inputs), strict=True):
            _check_input(feature, ids.shape)
            embedding = self._embedding_of(feature)
            shape = embedding.compute_output_spec(ids).shape
            shape = shape if len(ids.shape) == 1 else (*shape[:-2], shape[-1])
            specs.append(keras.KerasTensor(shape, dtype=self.compute_dtype))
        return tree.pack_sequence_as(structure, specs)

    def get_embedding_tables(self) -> dict[str, Any]:
        """Returns each table's rows by id, float32 (vocabulary_size, dim), by the table's name.

        Raises InvalidArgumentError for a table that takes any int64; `variables_by_table` has all
        tables.
        """
        return {embedding.name: embedding.dense_rows() for embedding in self._embeddings}

    def get_config(self) -> dict[str, Any]:
        config: dict[str, Any] = super().get_config()
        features = [
            {
                "name": feature.name,
                "table": self._tables.index(feature.table),
                "input_shape": feature.input_shape,
                "output_shape": feature.output_shape,
            }
            for feature in self._features
        ]
        config.update(
            tables=[table.get_config() for table in self._tables],
            features=features,
            structure=tree.pack_sequence_as(self._structure(), list(range(len(features)))),
        )
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> DistributedEmbedding:
        config = dict(config)
        tables = [TableConfig.from_config(table) for table in config.pop("tables")]
        features = [
            FeatureConfig(**{**feature, "table": tables[feature["table"]]})
            for feature in config.pop("features")
        ]
        structure = config.pop("structure")
        return cls(tree.map_structure(lambda number: features[number], structure), **config)


def _embedding(table: TableConfig, dtype: Any) -> Embedding:
    return Embedding(
        table.vocabulary_size,
        table.embedding_dim,
        table.initializer,
        optimizer=table.optimizer,
        ev_option=table.ev_option,
        partition_num=table.partition_num,
        shards=table.shards,
        name=table.name,
        dtype=dtype,
    )


def _combine(feature: FeatureConfig, ids: Any, rows: Any, weights: Any) -> Any:
    """Returns a feature's rows, combined per sample."""
    combiner = feature.table.combiner
    if weights is not None:
        if tuple(weights.shape) != tuple(ids.shape):
            raise InvalidArgumentError(
                f"weights of the feature {feature.name} must have the shape of its ids, "
                f"{tuple(ids.shape)}, got {tuple(weights.shape)}"
            )
        weights = ops.expand_dims(ops.cast(weights, rows.dtype), -1)
    if len(ids.shape) == 1:
        # With one row per sample, mean and sqrtn divide by the row's own weight.
        return rows if weights is None or combiner != "sum" else rows * weights
    summed = ops.sum(rows if weights is None else rows * weights, axis=-2)
    if combiner == "sum":
        return summed
    if weights is None:
        weights = ops.ones_like(rows[..., :1])
    if combiner == "mean":
        return ops.divide_no_nan(summed, ops.sum(weights, axis=-2))
    return ops.divide_no_nan(summed, ops.sqrt(ops.sum(ops.square(weights), axis=-2)))


def _check_same(what: str, structure: Any, given: Any) -> None:
    try:
        tree.assert_same_structure(structure, given)
    except (ValueError, TypeError) as error:
        raise InvalidArgumentError(
            f"{what} must have the structure of feature_configs: {error}"
        ) from None


def _check_input(feature: FeatureConfig, shape: Any) -> None:
    expected = feature.input_shape
    fits = len(shape) in (1, 2) and (
        expected is None
        or (
            len(expected) == len(shape)
            and all(None in (a, b) or a == b for a, b in zip(expected[1:], shape[1:], strict=True))
        )
    )
    if not fits:
        wanted = (
            "the shape (batch,) or (batch, length)"
            if expected is None
            else f"its input_shape, {expected}"
        )
        raise InvalidArgumentError(
            f"ids of the feature {feature.name} must have {wanted}, got {tuple(shape)}"
        )
