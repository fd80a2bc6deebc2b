"""A layer like `keras.layers.Embedding`, over an embedding variable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NoReturn

import keras
import numpy as np
from keras import ops
from numpy.typing import NDArray

from embstore.errors import CheckpointError, InvalidArgumentError
from embstore.initializers import Constant, Initializer, to_initializer
from embstore.keras.backend import check_backend, lookup
from embstore.keras.descriptions import describe
from embstore.keras.initializers import initializer_from_keras
from embstore.keras.optimizers import TableRule, describe_rule, to_table_rule
from embstore.keras.places import arguments_of_copy
from embstore.keras.private import is_input
from embstore.keras.rows import Rows
from embstore.keras.saving import load_table, save_table
from embstore.keras.table import Table, check_vocabulary_size
from embstore.options import EmbeddingVariableOption, StorageOption
from embstore.table import checks
from embstore.variable import EmbeddingVariable

__all__ = ["Embedding", "look_up_layers"]

_EXACT_IN_FLOAT32 = 2**24  # float32 holds every integer up to here
_MAX_IN_CONFIG = 2**20  # values of a table, some 10 to 20 bytes each as JSON
_SUBCLASS_PREFIX = "of_subclass_"  # of the variables of a derived class, in files


@keras.saving.register_keras_serializable("embstore")
class Embedding(keras.layers.Layer):  # type: ignore[misc]
    """A layer that looks up ids of any shape; its output is float of ids.shape + (output_dim,).

    input_dim: ids are from 0 to input_dim - 1; None or -1: any int64.
    embeddings_initializer: one of embstore.initializers or of Keras's; a Keras one initializes the
        first `default_value_dim` keys (see `embstore.InitializerOption`). The seed determines a
        key's initial row, in every process. With a Constant of shape (input_dim, output_dim), such
        as pretrained vectors, the initial row of key k is its row k.
        A copy by clone_model or from_config, which gets no weights, has the same initializer; or
        zeros if that is a Constant of more than 2**20 values, which is too large for a
        configuration.
    mask_zero: as in Keras: following layers ignore the places where the id is 0. Key 0 has a row.
    optimizer: one of embstore.optimizers or of keras.optimizers, schedules too, that trains the
        rows; None: the model's rule and learning rate train them.
    ev_option: where rows are kept, filters and eviction; eviction happens when a model is saved.
    partition_num, shards: as in `embstore.get_embedding_variable`; with `shards` the rows are in
        other processes, on a Ray cluster.

    `variable` is the `embstore.EmbeddingVariable`, which has the layer's name.

    `evaluate` and `predict` neither count for the ranking of rows nor move any. For a model that
    serves requests, set `serves` to True.

    Raises InvalidArgumentError, also for ids out of range, and the errors of
    `embstore.get_embedding_variable`.
    """

    def __init__(
        self,
        input_dim: int | None,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        mask_zero: bool = False,
        *,
        optimizer: Any = None,
        ev_option: EmbeddingVariableOption | None = None,
        partition_num: int = 1,
        shards: int | None = None,
        **kwargs: Any,
    ) -> None:
        check_backend()
        if kwargs.pop("weights", None) is not None:
            raise InvalidArgumentError(
                "weights: give pretrained rows as "
                "embeddings_initializer=keras.initializers.Constant(rows)"
            )
        for name in ("embeddings_regularizer", "embeddings_constraint", "lora_rank"):
            if kwargs.pop(name, None) is not None:
                raise InvalidArgumentError(
                    f"{name} needs the whole table at each step, which an embstore table doesn't "
                    "have; leave it out"
                )
        super().__init__(**kwargs)
        checks.variable_name(self.name)
        self.input_dim = check_vocabulary_size("input_dim", input_dim)
        self.output_dim = checks.integer("output_dim", output_dim, at_least=1)
        self.mask_zero = checks.flag("mask_zero", mask_zero)
        self.supports_masking = self.mask_zero
        self.autocast = False
        self.supports_jit = False  # XLA can't call Python from a graph
        self.partition_num, self.shards = checks.parts(partition_num, shards)
        option = EmbeddingVariableOption() if ev_option is None else ev_option
        if not isinstance(option, EmbeddingVariableOption):
            raise InvalidArgumentError(
                "ev_option must be an embstore.EmbeddingVariableOption, got "
                f"{type(ev_option).__name__}"
            )
        self.ev_option = option
        if option.init_option.initializer is not None:
            chosen = to_initializer(option.init_option.initializer)
        else:
            rows = self.input_dim or option.init_option.default_value_dim
            chosen = initializer_from_keras(embeddings_initializer, rows, self.output_dim)
        if self.input_dim is not None and _shape(chosen) == (self.input_dim, self.output_dim):
            init = replace(option.init_option, default_value_dim=self.input_dim)
            option = replace(option, init_option=init)
        self._own_rule: TableRule | None = None if optimizer is None else to_table_rule(optimizer)
        self._table = Table(
            self.name,
            self.output_dim,
            chosen,
            option,
            self._own_rule,
            self.input_dim,
            self.partition_num,
            self.shards,
        )
        self._initializer = chosen

    @property
    def variable(self) -> EmbeddingVariable:
        """The table. Until a call of a compiled model, or `embstore.keras.variables`, has told the
        layer the optimizer, this is a temporary variable without rows, which another one then
        replaces. A table that was never trained is replaced too if the model is compiled with
        another optimizer.
        """
        return self._table.variable

    @property
    def serves(self) -> bool:
        """True if look-ups outside training count for the ranking of rows, and promote rows."""
        return self._table.serves

    @serves.setter
    def serves(self, value: bool) -> None:
        self._table.serves = checks.flag("serves", value)

    @property
    def table(self) -> Table:
        return self._table

    @property
    def rows(self) -> Rows:
        """The Keras variable that stands for the table in the model, once the layer is built."""
        return self._rows

    def place(
        self, storage: StorageOption, partition_num: int = 1, shards: int | None = None
    ) -> None:
        """Changes where rows are kept. Raises InvalidArgumentError once the layer was used."""
        parts = checks.parts(partition_num, shards)
        self._table.place(storage, *parts)
        self.ev_option = replace(self.ev_option, storage_option=storage)
        self.partition_num, self.shards = parts

    def dense_rows(self) -> NDArray[np.float32]:
        """Returns all rows by id, float32 (input_dim, output_dim), with initial rows for ids that
        aren't trained yet. Raises InvalidArgumentError if input_dim is None.
        """
        if self.input_dim is None:
            raise InvalidArgumentError(
                f"{self.name} takes any int64 (input_dim=None), so there is no array of its rows; "
                "variable.export() gives those that it has"
            )
        return self.variable.lookup(np.arange(self.input_dim), train=True)

    def build(self, input_shape: Any = None) -> None:
        del input_shape  # a row's shape doesn't depend on it
        if hasattr(self, "_rows"):
            return
        with keras.name_scope(self.name, caller=self):
            self._rows = Rows(self._table, self.trainable)
        self.built = True

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        (rows,) = look_up_layers([(self, inputs)], training)
        return rows

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        del mask
        return ops.not_equal(inputs, 0) if self.mask_zero else None

    def compute_output_shape(self, input_shape: Any) -> Any:
        return (*input_shape, self.output_dim)

    def compute_output_spec(self, inputs: Any, training: bool | None = None) -> Any:
        del training
        self._check_dtype(inputs, symbolic=True)
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), dtype=self.compute_dtype)

    def save_own_variables(self, store: Any) -> None:
        save_table(self._table, store)
        for number, variable in enumerate(self._variables_of_subclass()):
            store[f"{_SUBCLASS_PREFIX}{number:04}"] = variable

    def load_own_variables(self, store: Any) -> None:
        own = self._variables_of_subclass()
        names = sorted(name for name in set(store.keys()) if name.startswith(_SUBCLASS_PREFIX))
        stored = [np.asarray(store[name]) for name in names]
        shapes, saved = ([tuple(each.shape) for each in values] for values in (own, stored))
        if shapes != saved:
            raise CheckpointError(
                f"{self.name}: the file has variables of the shapes {saved} beside its rows, and "
                f"the layer has {shapes}; make the layer as it was saved"
            )
        load_table(self._table, store)
        for variable, values in zip(own, stored, strict=True):
            variable.assign(values)

    def _variables_of_subclass(self) -> list[Any]:
        """Returns the variables that a derived class has added, in Keras's order."""
        own = [*self._trainable_variables, *self._non_trainable_variables]
        return [variable for variable in own if not isinstance(variable, Rows)]

    def get_config(self) -> dict[str, Any]:
        config: dict[str, Any] = super().get_config()
        initializer, option = self._initializer_of_copy()
        config.update(
            input_dim=self.input_dim,
            output_dim=self.output_dim,
            embeddings_initializer=describe("embeddings_initializer", initializer),
            mask_zero=self.mask_zero,
            optimizer=describe_rule(self._own_rule),
            ev_option=describe("ev_option", option),
            partition_num=self.partition_num,
            shards=self.shards,
        )
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Embedding:
        return cls(**arguments_of_copy(config, "embeddings_initializer"))

    def _initializer_of_copy(self) -> tuple[Any, EmbeddingVariableOption]:
        """Returns the initializer of a copy that gets no weights, and the options that it needs.

        This is the initializer that the layer was made with, even if another layer's weights
        replaced it.
        """
        option = _without_initializer(self.ev_option)
        initializer = self._initializer
        if not isinstance(initializer, Constant) or np.ndim(initializer.value) < 2:
            return initializer, option
        rows = np.asarray(initializer.value, np.float32)
        if rows.size > _MAX_IN_CONFIG:  # a load finds the rows among the weights
            return "zeros", option
        init = replace(option.init_option, default_value_dim=len(rows))
        return Constant(rows), replace(option, init_option=init)

    def _check_dtype(self, inputs: Any, symbolic: bool) -> None:
        self._check_dense(inputs)
        dtype = keras.backend.standardize_dtype(inputs.dtype)
        if self.input_dim is None and dtype != "int64" and is_input(inputs):
            self._refuse_dtype("the Input", dtype)  # Keras would round what it is fed
        if dtype.startswith("int") or dtype in ("uint8", "uint16", "uint32"):
            return
        if (
            dtype in ("float32", "float64")
            and self.input_dim is not None
            and self.input_dim <= _EXACT_IN_FLOAT32
        ):
            return
        self._refuse_dtype("the Input" if symbolic else "ids", dtype)

    def _check_dense(self, inputs: Any) -> None:
        kinds = ("sparse", "ragged")
        kind = next((kind for kind in kinds if getattr(inputs, kind, False) is True), None)
        if type(inputs).__name__ in ("SparseTensor", "RaggedTensor"):  # TensorFlow's
            kind = type(inputs).__name__.removesuffix("Tensor").lower()
        if any(getattr(inputs, kind, False) is True for kind in ("is_sparse", "is_sparse_csr")):
            kind = "sparse"  # PyTorch's
        if kind is not None:
            raise InvalidArgumentError(
                f"{self.name}: ids must be dense, got {kind} ones; make them dense before, by "
                "to_dense(), to_tensor() or tf.sparse.to_dense(), and give an Input that isn't "
                f"{kind}"
            )

    def _refuse_dtype(self, what: str, dtype: str) -> NoReturn:
        raise InvalidArgumentError(
            f"{self.name}: {what} must be int64, got {dtype}, in which different keys become one; "
            'write keras.Input(..., dtype="int64"), and give int64 ids'
        )


def look_up_layers(look_ups: Sequence[tuple[Embedding, Any]], training: bool | None) -> list[Any]:
    """Returns each layer's rows as its call does, with one request to the servers for all."""
    for embedding, ids in look_ups:
        embedding._check_dtype(ids, symbolic=False)
    found = lookup(
        [(each.table, each.rows, ops.cast(ids, "int64")) for each, ids in look_ups], bool(training)
    )
    return [
        ops.cast(rows, each.compute_dtype) for (each, _), rows in zip(look_ups, found, strict=True)
    ]


def _shape(initializer: Initializer) -> tuple[int, ...]:
    """Returns the shape of a Constant's values; () for other initializers and for ragged values,
    which raise when rows are made.
    """
    try:
        return np.shape(initializer.value) if isinstance(initializer, Constant) else ()
    except ValueError:  # a list of rows of different lengths
        return ()


def _without_initializer(option: EmbeddingVariableOption) -> EmbeddingVariableOption:
    return replace(option, init_option=replace(option.init_option, initializer=None))
