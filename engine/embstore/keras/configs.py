"""The configuration of a DistributedEmbedding, with the names and defaults of keras-rs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from embstore.errors import InvalidArgumentError
from embstore.initializers import TruncatedNormal
from embstore.keras.descriptions import describe
from embstore.keras.initializers import initializer_from_keras
from embstore.keras.optimizers import describe_rule, to_table_rule
from embstore.keras.places import arguments_of_copy
from embstore.keras.table import check_vocabulary_size
from embstore.options import EmbeddingVariableOption
from embstore.table import checks

__all__ = ["COMBINERS", "FeatureConfig", "TableConfig"]

COMBINERS = ("mean", "sum", "sqrtn")


@dataclass(eq=False)
class TableConfig:
    """A table for one or more features. Features share a table by having the same TableConfig
    object.

    vocabulary_size: ids are from 0 to vocabulary_size - 1; None or -1: any int64.
    initializer: as in `Embedding`; by default a truncated normal with the standard deviation 1 /
        sqrt(embedding_dim), divided by 0.87962566 to make up for the truncation.
    optimizer: as in `Embedding`, by default "adam"; None: the model's.
    combiner: how the rows of a sample are combined: "mean", "sum" or "sqrtn".
    placement: "auto" or "default_device", for programs written for keras-rs; `ev_option` determines
        where the rows are.
    ev_option, partition_num, shards: as in `Embedding`.
    """

    name: str
    vocabulary_size: int | None
    embedding_dim: int
    initializer: Any = None
    optimizer: Any = "adam"
    combiner: str = "mean"
    placement: str = "auto"
    ev_option: EmbeddingVariableOption | None = None
    partition_num: int = 1
    shards: int | None = None

    def __post_init__(self) -> None:
        if "/" in checks.variable_name(self.name):
            raise InvalidArgumentError(f"name must have no /, got {self.name!r}")
        dim = checks.integer("embedding_dim", self.embedding_dim, at_least=1)
        self.combiner = checks.choice("combiner", self.combiner, COMBINERS)
        self.placement = checks.choice("placement", self.placement, ("auto", "default_device"))
        self.partition_num, self.shards = checks.parts(self.partition_num, self.shards)
        self.vocabulary_size = check_vocabulary_size("vocabulary_size", self.vocabulary_size)
        if self.initializer is None:
            self.initializer = TruncatedNormal(stddev=1 / math.sqrt(dim) / 0.87962566103423978)
        else:
            rows = self.vocabulary_size or 4096
            self.initializer = initializer_from_keras(self.initializer, rows, dim)
        if self.optimizer is not None:
            self.optimizer = to_table_rule(self.optimizer)

    def get_config(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "vocabulary_size": self.vocabulary_size,
            "embedding_dim": self.embedding_dim,
            "initializer": describe("initializer", self.initializer),
            "optimizer": describe_rule(self.optimizer),
            "combiner": self.combiner,
            "placement": self.placement,
            "ev_option": describe("ev_option", self.ev_option),
            "partition_num": self.partition_num,
            "shards": self.shards,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> TableConfig:
        return cls(**arguments_of_copy(config, "initializer"))


@dataclass(eq=False)
class FeatureConfig:
    """An input of a DistributedEmbedding, and the table that it is looked up in.

    input_shape: (batch, length) of the ids, or (batch,), with None for variable sizes. If given,
        inputs are checked against it.
    output_shape: (batch, embedding_dim), with None for variable sizes.
    """

    name: str
    table: TableConfig
    input_shape: tuple[int | None, ...] | None = None
    output_shape: tuple[int | None, ...] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.table, TableConfig):
            raise InvalidArgumentError(
                f"table must be an embstore.keras.TableConfig, got {type(self.table).__name__}"
            )
        for name in ("input_shape", "output_shape"):
            shape = getattr(self, name)
            if shape is None:
                continue
            if not isinstance(shape, Sequence) or not shape:
                raise InvalidArgumentError(
                    f"{name} of the feature {self.name} must be a tuple of sizes, None for what "
                    f"may vary, got {shape!r}"
                )
            setattr(self, name, tuple(shape))
        if self.output_shape is not None and self.output_shape[-1] != self.table.embedding_dim:
            raise InvalidArgumentError(
                f"output_shape of the feature {self.name} must end with its table's "
                f"embedding_dim={self.table.embedding_dim}, got {self.output_shape}"
            )
