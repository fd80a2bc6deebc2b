"""A layer's table: its gradients from a step's backward pass, and how they train its rows."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore import _core
from embstore.errors import InUseError, InvalidArgumentError, UnsupportedError
from embstore.initializers import Constant, Initializer
from embstore.keras import marks
from embstore.keras.optimizers import TableRule, are_same_rule, rule_from_keras
from embstore.optimizers import Optimizer
from embstore.options import EmbeddingVariableOption, StorageOption
from embstore.table import checks
from embstore.table.getting import get_embedding_variable
from embstore.table.many import lookup_many
from embstore.variable import EmbeddingVariable

__all__ = ["Table", "are_same_initializer", "check_vocabulary_size", "look_up_many"]

Ids = NDArray[np.int64]
Floats = NDArray[np.float32]

_MAX_BYTES = 1 << 30  # of gradients that wait for a step, without the last backward pass


@dataclass(frozen=True)
class _GatheredGradient:
    number: int  # number of the look-up
    mark: int  # its mark's number modulo marks.MAX_MARKS
    ids: Ids  # (n,)
    grads: Floats  # (n, dim)
    owner: Any  # of grads' memory; keeps other code from writing there


class Table:
    """A layer's variable, which is made once its optimizer is known.

    own: the table's own rule; None: the model's optimizer trains the rows.
    vocabulary_size: ids must be from 0 to vocabulary_size - 1; None: any int64 is a key.
    partition_num, shards: as in `embstore.get_embedding_variable`.

    serves: whether look-ups outside training count for the ranking of rows, and promote rows.
    """

    def __init__(
        self,
        name: str,
        dim: int,
        initializer: Initializer,
        ev_option: EmbeddingVariableOption,
        own_rule: TableRule | None,
        vocabulary_size: int | None,
        partition_num: int = 1,
        shards: int | None = None,
    ) -> None:
        self.name = name
        self.dim = dim
        self.own_rule = own_rule
        self.vocabulary_size = vocabulary_size
        self.serves = False
        self._initializer = initializer
        self._option = ev_option
        self._partition_num = partition_num
        self._shards = shards
        self._lock = threading.RLock()
        self._variable: EmbeddingVariable | None = None
        self._gathered: list[_GatheredGradient] = []
        self._earlier_count = 0  # how many come from backward passes before the last look-up
        self._gathered_bytes = 0
        self._has_dropped = False  # whether old gradients were dropped, which no step had applied
        self._numbers = itertools.count()
        self._marks = itertools.count()
        # (variable, its rate_changes, rate) of the last check that the variable has that learning
        # rate.
        self._rate_known: tuple[EmbeddingVariable, int, float] | None = None
        self._converted: tuple[Any, Optimizer] | None = None

    @property
    def variable(self) -> EmbeddingVariable:
        """The variable. Until its optimizer is known it has none, and no row can be trained."""
        with self._lock:
            if self._variable is None:
                self.make(None if self.own_rule is None else self.own_rule.optimizer)
            assert self._variable is not None
            return self._variable

    @property
    def is_made(self) -> bool:
        return self._variable is not None

    @property
    def is_remote(self) -> bool:
        """True if its shards are, or will be, in other processes."""
        return self._shards is not None

    @property
    def partition_num(self) -> int:
        """The number of partitions or shards of the variable, made or not."""
        return self._shards or self._partition_num

    @property
    def initial_rows(self) -> Floats | None:
        """The keys' initial rows if they were given as a table, float32 (rows, dim), or None."""
        return _rows_of_constant(self._initializer)

    @property
    def initializer(self) -> Initializer:
        return self._initializer

    def set_initializer(self, initializer: Initializer) -> None:
        """Changes the keys' initial rows. A variable that was made with others is emptied."""
        with self._lock:
            init = replace(self._option.init_option, initializer=None)
            rows = _rows_of_constant(initializer)
            if rows is not None:
                init = replace(init, default_value_dim=len(rows))
            is_same_size = init.default_value_dim == self._option.init_option.default_value_dim
            if is_same_size and are_same_initializer(initializer, self._initializer):
                return
            self._option = replace(self._option, init_option=init)
            self._initializer = initializer
            if self._variable is not None:
                self.make(self._variable.optimizer)

    def place(self, storage: StorageOption, partition_num: int, shards: int | None) -> None:
        """Changes where rows are kept. Raises InvalidArgumentError if the variable is made."""
        with self._lock:
            if self.is_made:
                raise InvalidArgumentError(
                    f"{self.name}: was used already, so where its rows lie can't be chosen any more"
                )
            self._option = replace(self._option, storage_option=storage)
            self._partition_num = partition_num
            self._shards = shards

    def make(self, optimizer: Optimizer | None) -> None:
        """Makes the variable, empty. It replaces an earlier one, which is closed."""
        with self._lock:
            if self._variable is not None:
                self._variable.close()
                self._variable = None  # making the new one may fail
            try:
                self._variable = get_embedding_variable(
                    self.name,
                    self.dim,
                    initializer=self._initializer,
                    optimizer=optimizer,
                    ev_option=self._option,
                    partition_num=self._partition_num,
                    shards=self._shards,
                    restores=True,  # because a model is made before its weights are loaded
                )
            except InUseError as error:
                raise InUseError(
                    f"{error}. If this is a copy of a model that has them, make it in `with "
                    "embstore.keras.rows_at(folder):`"
                ) from error

    def _check_vocabulary(self, ids: Ids) -> None:
        size = self.vocabulary_size
        if size is not None and ids.size:
            min_id, max_id = ids.min(), ids.max()
            if min_id < 0 or max_id >= size:
                raise InvalidArgumentError(
                    f"{self.name}: ids must be from 0 to {size - 1}, as its input_dim (of a "
                    f"TableConfig: vocabulary_size) says, got {min_id if min_id < 0 else max_id}; "
                    "with None any int64 is a key"
                )

    def check_stand_in(self, values: Floats) -> None:
        """Raises UnsupportedError if the stand-in for the rows isn't at zeros: Keras's optimizers
        leave it there, so that another optimizer has trained it.

        values: float32 (marks.SIZE,).
        """
        if values.any():
            raise UnsupportedError(
                f"{self.name}: what stands for its rows among the model's variables was trained by "
                "another than a Keras optimizer, and the rows weren't; make the model anew, and "
                "train it by one of keras.optimizers: in a loop of your own, by its apply(). For "
                "torch.optim there is embstore.torch"
            )

    def next_number(self) -> int:
        with self._lock:
            self._earlier_count = len(self._gathered)
            return next(self._numbers)

    def gather(self, number: int, ids: Ids, grads: Floats, owner: Any = None) -> Floats:
        """Keeps a look-up's gradients until `update`. Returns their mark, or nan if a gradient
        isn't finite; float32 (marks.SIZE,).

        grads: float32 of ids.shape + (dim,), in memory that belongs to `owner`.
        """
        with self._lock:
            # Isn't the look-up's number, since a look-up's gradients may come back more than once.
            mark = next(self._marks)
            part = _GatheredGradient(
                number, mark % marks.MAX_MARKS, ids.reshape(-1), grads.reshape(-1, self.dim), owner
            )
            self._gathered.append(part)
            self._gathered_bytes += part.grads.nbytes
            while self._earlier_count and (
                self._gathered_bytes > _MAX_BYTES or len(self._gathered) > marks.MAX_MARKS
            ):
                self._gathered_bytes -= self._gathered.pop(0).grads.nbytes
                self._earlier_count -= 1
                self._has_dropped = True
        if _core.first_not_finite(part.grads) is not None:
            return np.full(marks.SIZE, np.nan, np.float32)
        return marks.mark(mark)

    def forget(self) -> None:
        """Drops the gathered gradients, because the gradient that has their marks was cleared."""
        self._take_gathered()

    def _take_gathered(self) -> tuple[list[_GatheredGradient], bool]:
        """Takes the gathered gradients. Returns them, and whether older ones were dropped."""
        with self._lock:
            taken = self._gathered, self._has_dropped
            self._gathered, self._earlier_count, self._gathered_bytes, self._has_dropped = (
                [],
                0,
                0,
                False,
            )
            return taken

    def update(
        self, mark_sum: Floats, rate: float, loss_scale: float, optimizer: Any
    ) -> tuple[EmbeddingVariable, Ids, Floats]:
        """Returns a step's variable, ids and gradients: of the gathered gradients, those whose
        marks are in `mark_sum`. The others are dropped, since the optimizer doesn't apply them.

        mark_sum: the sum of what `gather` returned, (marks.SIZE,).
        rate: the Keras `optimizer`'s. Its rule and rate are used if the table has none of its own.
        loss_scale: the factor that the gradients have to be divided by.
        """
        with self._lock:
            gathered, has_dropped = self._take_gathered()
            if not np.isfinite(mark_sum).all():
                raise InvalidArgumentError(
                    f"{self.name}: a gradient is inf or nan, and would be the loss of its rows; "
                    "no row was trained in this step"
                )
            parts = self._marked_parts(gathered, has_dropped, mark_sum, optimizer)
            ids = np.concatenate([part.ids for part in parts]) if parts[1:] else parts[0].ids
            grads = np.concatenate([part.grads for part in parts]) if parts[1:] else parts[0].grads
            if loss_scale != 1:
                grads = grads / np.float32(loss_scale)
            variable = self._trainable_variable(optimizer)
            new_rate = (
                rate
                if self.own_rule is None
                else self.own_rule.rate(variable.internals.apply_count())
            )
            if new_rate is not None:
                self._set_rate(variable, new_rate)
            return variable, ids, grads

    def _marked_parts(
        self,
        gathered: Sequence[_GatheredGradient],
        has_dropped: bool,
        mark_sum: Floats,
        optimizer: Any,
    ) -> list[_GatheredGradient]:
        """Returns the gradients with a mark in `mark_sum`, in the order of look-ups."""
        newest = {part.mark: part for part in gathered}
        applied_marks = marks.marks_in(mark_sum)
        if applied_marks and all(mark in newest for mark in applied_marks):
            return sorted((newest[mark] for mark in applied_marks), key=lambda part: part.number)
        if applied_marks and has_dropped:
            raise UnsupportedError(
                f"{self.name}: {_MAX_BYTES >> 20} MiB of gradients were gathered since the last "
                "step, and some that it wants were dropped; apply them in smaller steps"
            )
        count = marks.count_of(mark_sum)
        if count > marks.MAX_MARKS and count == round(count):
            raise UnsupportedError(
                f"{self.name}: {count:.0f} look-ups in one step are more than the "
                f"{marks.MAX_MARKS} that rows can follow; look more ids up at once, or train in "
                "smaller steps"
            )
        raise UnsupportedError(
            f"{self.name}: its gradient was changed between the backward pass and "
            f"{type(optimizer).__name__}, which rows can't follow; hand gradients on as "
            "they are, or their sum, before newer ones are applied"
        )

    def set_model_optimizer(self, keras_optimizer: Any) -> None:
        """Makes the table, before the first step, for the optimizer of a compiled model."""
        with self._lock:
            if self.own_rule is not None:
                return
            variable = self._variable
            if variable is None or variable.optimizer is None:
                self._trainable_variable(keras_optimizer)
                return
            with contextlib.suppress(UnsupportedError):  # the first step raises it
                rule = self._rule_of(keras_optimizer)
                if not are_same_rule(variable.optimizer, rule) and _is_untrained(variable):
                    self.make(rule)

    def _set_rate(self, variable: EmbeddingVariable, new_rate: float) -> None:
        known = (variable, variable.internals.rate_changes, new_rate)
        if known == self._rate_known:
            return
        if np.float32(new_rate) != np.float32(variable.learning_rate):
            variable.learning_rate = new_rate
        self._rate_known = (variable, variable.internals.rate_changes, new_rate)

    def _trainable_variable(self, keras_optimizer: Any) -> EmbeddingVariable:
        rule = self._rule_of(keras_optimizer) if self.own_rule is None else self.own_rule.optimizer
        if self._variable is None:
            self.make(rule)
        variable = self.variable
        if variable.optimizer is None:
            if variable.total_count()[0]:
                raise InvalidArgumentError(
                    f"{self.name}: its rows were restored before it was known how they are "
                    "trained, and have no optimizer slots; compile the model first, and ask "
                    "embstore.keras.variables(model) for the variable to restore"
                )
            self.make(rule)
        elif not are_same_rule(variable.optimizer, rule):
            if _is_untrained(variable):  # the model was compiled again before its first step
                self.make(rule)
                return self.variable
            raise InvalidArgumentError(
                f"{self.name}: its rows were trained by {variable.optimizer}, and the model is now "
                f"compiled with what would be {rule}; compile it with the same as before, or give "
                "the layer optimizer="
            )
        return self.variable

    def _rule_of(self, keras_optimizer: Any) -> Optimizer:
        if self._converted is None or self._converted[0] is not keras_optimizer:
            self._converted = (keras_optimizer, rule_from_keras(keras_optimizer))
        return self._converted[1]


def check_vocabulary_size(name: str, size: object) -> int | None:
    """Returns the number of ids; None, for any int64, if it is None or -1. name: for errors."""
    is_any = size is None or (isinstance(size, Integral) and size == -1)
    return None if is_any else checks.integer(name, size, at_least=1, unit="ids")


def _is_untrained(variable: EmbeddingVariable) -> bool:
    return not variable.total_count()[0] and not variable.internals.apply_count()


def _rows_of_constant(initializer: Initializer) -> Floats | None:
    """Returns the initial rows (rows, dim) of keys, or None if they aren't given as a table."""
    values = initializer.value if isinstance(initializer, Constant) else None
    return None if np.ndim(values) < 2 else np.asarray(values, np.float32)  # type: ignore[arg-type]


def are_same_initializer(one: Initializer, other: Initializer) -> bool:
    """Returns whether both give keys the same initial rows. Compares Constants by their values."""
    if isinstance(one, Constant) and isinstance(other, Constant):
        return np.array_equal(
            np.asarray(one.value, np.float32), np.asarray(other.value, np.float32)
        )
    return one == other


def look_up_many(look_ups: Sequence[tuple[Table, Ids]], *, train: bool) -> list[Floats]:
    """Returns the rows of each table's ids, float32 of ids.shape + (dim,), with one request to the
    servers for all.

    train: whether they are for a training step. If not, the table's `serves` decides whether they
    count.
    """
    for table, ids in look_ups:
        table._check_vocabulary(ids)
    rows: dict[int, Floats] = {}
    counts = [train or table.serves for table, _ in look_ups]  # has no effect in training
    for count in set(counts):
        where = [i for i, each in enumerate(counts) if each == count]
        variables = [look_ups[i][0].variable for i in where]
        found = lookup_many(variables, [look_ups[i][1] for i in where], train=train, count=count)
        rows |= zip(where, found, strict=True)
    return [rows[i] for i in range(len(look_ups))]
