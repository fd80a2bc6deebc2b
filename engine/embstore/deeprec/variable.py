"""Embedding variables in a TensorFlow graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn

import numpy as np
import tensorflow.compat.v1 as tf
from numpy.typing import NDArray

from embstore import variable as engine
from embstore.deeprec.reading import keys_of, look_up, on_cpu
from embstore.deeprec.rows_folder import current_rows_folder
from embstore.deeprec.tables import NO_TABLE, add_table, close_table, table_of
from embstore.deeprec.tensorflow_inside import (
    VARIABLE_VALUE_KEY,
    SaveableObject,
    SaveSpec,
    Trackable,
)
from embstore.errors import InvalidArgumentError, UnsupportedError
from embstore.initializers import Constant
from embstore.optimizers import Optimizer
from embstore.options import EmbeddingVariableOption
from embstore.table.getting import get_embedding_variable as make_table

__all__ = [
    "EMBEDDING_VARIABLES",
    "EmbeddingVariable",
    "ExportedRows",
    "Partition",
    "has_imported_variables",
    "variables_of",
]

EMBEDDING_VARIABLES = "embedding_variables"  # the collection of all embedding variables


class ExportedRows(NamedTuple):
    """Tensors of all rows of a variable, in ascending order of keys.

    keys int64 (n,), values float32 (n, dim), versions int64 (n,), freqs int64 (n,).
    """

    keys: Any
    values: Any
    versions: Any
    freqs: Any


class EmbeddingVariable(Trackable):  # type: ignore[misc]
    """A variable of rows by int64 key. Each session has the rows of its own initialization.

    It is in GLOBAL_VARIABLES, so that TensorFlow initializes and saves it with the others, and in
    TRAINABLE_VARIABLES, so that optimizers find it. `tf.nn.embedding_lookup` and related functions
    read rows. Iteration yields its partitions. `get_embedding_variable` makes it.
    """

    # Otherwise NumPy would treat it as a scalar, and return an array of variables.
    __array_ufunc__ = None

    def __init__(
        self,
        number: Any,
        dim: int,
        make_rows: Callable[[], Any],
        ev_option: EmbeddingVariableOption,
        partition_num: int,
        trainable: bool,
        key_dtype: Any,
    ) -> None:
        """number: the tf.Variable that holds the number of its table.

        make_rows: makes a tensor of the initial rows.
        """
        self._number = number
        self._dim = dim
        self._ev_option = ev_option
        self._partition_num = partition_num
        self._trainable = trainable
        self._key_dtype = key_dtype
        self._optimizer: Optimizer | None = None
        with on_cpu(), tf.name_scope(f"{self._path}/"):
            self.table_number = tf.cond(
                number.is_initialized(), number.read_value, lambda: tf.constant(NO_TABLE, tf.int64)
            )
            # The target of gradients: look-ups take it as an input.
            self.rows = tf.zeros([0, dim], name="rows")
            new_number = tf.numpy_function(
                self._make_numbered_table, [self.table_number, make_rows()], tf.int64
            )
            new_number.set_shape(())
            self._initializer = number.assign(new_number, name="Initialize", read_value=False)

    @property
    def name(self) -> str:
        return str(self._number.name)

    @property
    def _path(self) -> str:
        return str(self._number.op.name)

    @property
    def number(self) -> Any:
        """The tf.Variable that holds the number of its table (see `tables`)."""
        return self._number

    @property
    def op(self) -> Any:
        return self._number.op

    @property
    def graph(self) -> Any:
        return self._number.graph

    @property
    def device(self) -> str:
        return str(self._number.device)

    @property
    def dtype(self) -> Any:
        return tf.float32

    @property
    def key_dtype(self) -> Any:
        """int64 or int32. Rows have int64 keys either way."""
        return self._key_dtype

    @property
    def shape(self) -> Any:
        """(dim,): the number of rows changes; `total_count()` returns it."""
        return tf.TensorShape([self._dim])

    def get_shape(self) -> Any:
        return self.shape

    @property
    def dim(self) -> int:
        return self._dim

    @property
    def trainable(self) -> bool:
        return self._trainable

    @property
    def ev_option(self) -> EmbeddingVariableOption:
        return self._ev_option

    @property
    def optimizer(self) -> Optimizer | None:
        """The optimizer of its rows, or None before an optimizer's `apply_gradients` had it."""
        return self._optimizer

    @property
    def initializer(self) -> Any:
        """The operation that makes the table, empty, and closes the session's earlier one."""
        return self._initializer

    def is_initialized(self, name: str | None = None) -> Any:
        return self._number.is_initialized(name)

    def set_optimizer(self, optimizer: Optimizer) -> None:
        """Sets its optimizer. Raises InvalidArgumentError if another one trains it already."""
        if self._optimizer not in (None, optimizer):
            raise InvalidArgumentError(
                f"{self._path} is trained by {self._optimizer} already; its rows hold the slots of "
                f"that optimizer, so {optimizer} can't train them too"
            )
        self._optimizer = optimizer

    def table(self, session: Any) -> engine.EmbeddingVariable:
        """Returns the table of a session, for methods without a TensorFlow name: `stats()` etc.

        It is closed with the session. Raises InvalidArgumentError if the session has none.
        """
        number = int(session.run(self.table_number))
        if number == NO_TABLE:
            raise InvalidArgumentError(
                f"{self._path} isn't initialized in this session; run its initializer, or restore "
                "a checkpoint"
            )
        return table_of(number)

    def sparse_read(self, ids: Any, name: str | None = None) -> Any:
        """Reads rows like `tf.nn.embedding_lookup`."""
        return look_up(self, ids, name)

    def total_count(self) -> Any:
        """Returns (number of rows, dim), int64 (2,)."""
        return self._read_in_graph(
            "total_count", lambda table: np.array(table.total_count(), np.int64), [2]
        )

    get_dynamic_shape = total_count

    def get_frequency(self, ids: Any) -> Any:
        """Returns how often each id was trained, int64 of ids.shape."""
        return self._read_by_ids("frequency", ids, lambda table, keys: table.get_frequency(keys))

    def get_version(self, ids: Any) -> Any:
        """Returns the global step of each id's last update, or -1; int64 of ids.shape."""
        return self._read_by_ids("version", ids, lambda table, keys: table.get_version(keys))

    def lookup_tier(self, ids: Any) -> Any:
        """Returns the tier of each id's row, from 0, or -1 if it has no row; int64 of ids.shape."""
        return self._read_by_ids(
            "tier", ids, lambda table, keys: table.lookup_tier(keys).astype(np.int64)
        )

    def export(self) -> ExportedRows:
        def export(number: np.int64) -> tuple[NDArray[Any], ...]:
            rows = table_of(int(number)).export()
            return rows["keys"], rows["values"], rows["versions"], rows["freqs"]

        with on_cpu(), tf.name_scope(f"{self._path}_export"):
            types = (tf.int64, tf.float32, tf.int64, tf.int64)
            tensors = tf.numpy_function(export, [self._number], types)
        for tensor, shape in zip(tensors, ([None], [None, self._dim], [None], [None]), strict=True):
            tensor.set_shape(shape)
        return ExportedRows(*tensors)

    def __len__(self) -> int:
        return self._partition_num

    def __iter__(self) -> Iterator[Partition]:
        return (Partition(self, number) for number in range(self._partition_num))

    def __repr__(self) -> str:
        return f"<embstore.deeprec.EmbeddingVariable {self._path!r} dim={self._dim}>"

    def ref(self) -> NoReturn:
        """Raises UnsupportedError: tf.train.ExponentialMovingAverage, for one, needs a tensor."""
        _refuse_as_tensor(self)

    def to_proto(self, export_scope: str | None = None) -> None:
        """Returns None: another process that reads a meta graph can't make the variable from it."""
        del export_scope

    def _gather_saveables_for_checkpoint(self) -> Mapping[str, Callable[..., SaveableObject]]:
        return {VARIABLE_VALUE_KEY: self._saveable}

    def _saveable(self, name: str | None = None) -> SaveableObject:
        if name not in (None, self._path):
            raise InvalidArgumentError(
                f"var_list names {self._path} {name!r}, but rows are saved under the name of their "
                "variable; use that, or make the variable with the other name"
            )
        with on_cpu():
            folder = tf.numpy_function(
                current_rows_folder, [], tf.string, name=f"{self._path}_rows"
            )
            folder.set_shape(())
        return _SavedRows(self, [SaveSpec(folder, "", self._path, tf.string)], self._path)

    def _make_numbered_table(self, former: np.int64, rows: NDArray[np.float32]) -> np.int64:
        close_table(int(former))
        option = self._ev_option
        table = make_table(
            self._path,
            self._dim,
            optimizer=self._optimizer,
            ev_option=replace(
                option, init_option=replace(option.init_option, initializer=Constant(rows))
            ),
            partition_num=self._partition_num,
            restores=True,  # because a Saver may restore rows
        )
        return np.int64(add_table(table))

    def _read_in_graph(
        self,
        operation_name: str,
        read: Callable[..., Any],
        shape: Sequence[int | None],
        *inputs: Any,
    ) -> Any:
        """Returns an int64 tensor of what `read` returns for the table and the inputs' values."""
        with on_cpu(), tf.name_scope(f"{self._path}_{operation_name}"):
            answer = tf.numpy_function(
                lambda number, *values: read(table_of(int(number)), *values),
                [self._number, *inputs],
                tf.int64,
            )
        answer.set_shape(shape)
        return answer

    def _read_by_ids(
        self, operation_name: str, ids: Any, read: Callable[[engine.EmbeddingVariable, Any], Any]
    ) -> Any:
        keys = keys_of(self, ids)
        return self._read_in_graph(operation_name, read, keys.shape, keys)


class Partition:
    """One of the partitions that a variable's keys are spread over."""

    def __init__(self, variable: EmbeddingVariable, number: int) -> None:
        self._variable = variable
        self._number = number

    @property
    def name(self) -> str:
        return f"{self._variable.op.name}/part_{self._number}"

    def total_count(self) -> Any:
        """Returns (number of rows in the partition, dim), int64 (2,)."""

        def count(table: engine.EmbeddingVariable) -> NDArray[np.int64]:
            return np.array([table.internals.shards[self._number].size(), table.dim], np.int64)

        return self._variable._read_in_graph(f"part_{self._number}_total_count", count, [2])

    get_dynamic_shape = total_count

    def __repr__(self) -> str:
        return f"<embstore.deeprec.Partition {self.name!r}>"


class _SavedRows(SaveableObject):  # type: ignore[misc]
    """The entry in TensorFlow's checkpoint: the name of the rows' folder, which `Saver` uses."""

    def restore(self, restored_tensors: Any, restored_shapes: Any) -> Any:
        del restored_shapes
        with tf.control_dependencies(restored_tensors):
            return tf.no_op()


def variables_of(graph: Any) -> list[EmbeddingVariable]:
    """Returns the variables that were made in the graph. An imported meta graph has only names."""
    members = graph.get_collection(EMBEDDING_VARIABLES)
    return [each for each in members if isinstance(each, EmbeddingVariable)]


def has_imported_variables(graph: Any) -> bool:
    """Returns whether a meta graph with embedding variables was imported, which the graph lacks."""
    return len(variables_of(graph)) < len(graph.get_collection_ref(EMBEDDING_VARIABLES))


def _refuse_as_tensor(
    value: EmbeddingVariable, dtype: Any = None, name: str | None = None, as_ref: bool = False
) -> NoReturn:
    del dtype, name, as_ref
    raise UnsupportedError(
        f"{value.op.name} can't become a tensor, since every int64 is a key of it; look rows up by "
        "tf.nn.embedding_lookup, train them by an optimizer that is or derives from one of "
        "tf.train's, or export() those that there are"
    )


tf.register_tensor_conversion_function(EmbeddingVariable, _refuse_as_tensor)
