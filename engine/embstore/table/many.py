"""Look-ups and updates of several variables in one call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from embstore import _core
from embstore.errors import EmbStoreError, InvalidArgumentError
from embstore.gpu.batches import OnDevice, is_on_device
from embstore.gpu.steps import ApplyStep, LookUpStep, apply_together, look_up_together
from embstore.table import checks
from embstore.table.remote_shards import RemoteLookup, send_lookups, slices_of_one_array
from embstore.table.variable_arguments import check_variable_list
from embstore.variable import EmbeddingVariable, push_to_remote_shards

__all__ = ["BagsOfIds", "apply_bags", "apply_many", "look_up_bags", "lookup_many", "prefetch_many"]

# Where each bag begins, from 0 and ascending, and an id that is left out of the sums, or None.
BagsOfIds: TypeAlias = "tuple[NDArray[np.int64], int | None]"

# A table, ids (n,), gradients (n, dim) or (bags, dim), and the bags if there are any.
_LocalBatch: TypeAlias = (
    "tuple[_core.Table, NDArray[np.int64], NDArray[np.float32], BagsOfIds | None]"
)


def lookup_many(
    variables: Sequence[EmbeddingVariable],
    ids: Sequence[checks.Ids | OnDevice],
    *,
    train: bool = False,
    count: bool = True,
) -> list[Any]:
    """Returns the rows of each variable's ids, as `variable.lookup` does with the same arguments.

    ids: one array for each variable. A variable may be listed several times.

    Variables with a single shard in this process and ids on the host: the rows of all of them lie
    in one array, which lives as long as any slice of it; several threads share the work
    (`set_num_threads`); an error of one variable stops no other, and the first is raised.
    Ids on one GPU are looked up as one step on its stream, with as many kernel launches as one
    variable takes. Each server gets one request for all variables that have a shard there. Errors
    name the variable.
    """
    variables, ids = _checked_lists(variables, ids=ids)
    if type(train) is not bool or type(count) is not bool:  # NumPy's, mostly
        train, count = checks.flag("train", train), checks.flag("count", count)
    tables = [variable.internals.table for variable in variables]
    if None not in tables and set(map(type, ids)) == {np.ndarray}:  # the usual case
        arrays = cast("Sequence[NDArray[Any]]", ids)
        return _look_up_locally(variables, cast("list[_core.Table]", tables), arrays, train, count)
    rows: list[Any] = [None] * len(variables)
    steps: dict[int, LookUpStep] = {}
    local: dict[int, tuple[EmbeddingVariable, _core.Table, NDArray[np.int64]]] = {}
    others: dict[int, NDArray[np.int64]] = {}
    for i, (variable, variable_ids, table) in enumerate(zip(variables, ids, tables, strict=True)):
        with _NamedErrors(variable):
            if is_on_device(variable_ids):
                steps[i] = LookUpStep.of(variable, variable_ids, None)
            elif table is not None:
                local[i] = variable, table, checks.ids(variable_ids)
            else:
                others[i] = checks.ids(variable_ids)
    look_up_together(list(steps.values()), train, count)
    for i, step in steps.items():
        rows[i] = step.out
    remote_lookups = _start_remote_lookups(variables, others, train, count)
    if local:
        local_variables, local_tables, keys = zip(*local.values(), strict=True)
        found = _look_up_locally(local_variables, local_tables, keys, train, count)
        for i, found_rows in zip(local, found, strict=True):
            rows[i] = found_rows
    buffers = slices_of_one_array(
        [variable_ids.size * variables[i].dim for i, variable_ids in others.items()]
    )
    for (i, variable_ids), buffer in zip(others.items(), buffers, strict=True):
        variable = variables[i]
        rows[i] = buffer.reshape(*variable_ids.shape, variable.dim)
        with _NamedErrors(variable):
            if i in remote_lookups:
                remote_lookups[i].write_to(buffer.reshape(-1, variable.dim))
            else:
                variable.lookup(variable_ids, train=train, count=count, out=rows[i])
    return rows


def look_up_bags(
    variables: Sequence[EmbeddingVariable],
    ids: Sequence[NDArray[np.int64]],
    bags: Sequence[BagsOfIds],
    *,
    train: bool,
    count: bool,
) -> list[NDArray[np.float32]] | None:
    """Returns the sums of the rows of each variable's bags, (bags, dim); None unless every variable
    has a single shard in this process.

    bags: each variable's bags, which split its ids in their order.
    """
    tables = [variable.internals.table for variable in variables]
    if None in tables:
        return None
    return _look_up_locally(variables, cast("list[_core.Table]", tables), ids, train, count, bags)


def _look_up_locally(
    variables: Sequence[EmbeddingVariable],
    tables: Sequence[_core.Table],
    ids: Sequence[NDArray[Any]],
    train: bool,
    count: bool,
    bags: Sequence[BagsOfIds] | None = None,
) -> list[NDArray[np.float32]]:
    """Returns the rows of each variable's ids, or the sums of its bags.

    tables: each variable's only table.
    """
    dims = [variable.dim for variable in variables]
    have_one_dim = len(set(dims)) == 1  # then slices need no reshape, which doubles the work
    counted_arrays = ids if bags is None else [offsets for offsets, _ in bags]
    counts = [variable_ids.size for variable_ids in counted_arrays]
    sizes = (
        counts if have_one_dim else [count * dim for count, dim in zip(counts, dims, strict=True)]
    )
    ends = [0, *accumulate(sizes)]
    buffer = np.empty((ends[-1], dims[0]) if have_one_dim else ends[-1], np.float32)
    values = buffer.reshape(-1)
    try:
        errors = _core.look_up_each(tables, ids, values, train, count, bags)
    except TypeError:  # some ids must be converted, or can't be
        keys = _checked_ids(variables, ids)
        errors = _core.look_up_each(tables, keys, values, train, count, bags)
    for variable, failed in zip(variables, errors, strict=True):
        if failed is not None:
            raise _with_name(variable, failed)
    rows = [buffer[begin:end] for begin, end in pairwise(ends)]
    for i, variable_ids in enumerate(counted_arrays):
        if variable_ids.ndim != 1 or not have_one_dim:
            rows[i] = rows[i].reshape(*variable_ids.shape, dims[i])
    return rows


def _checked_ids(
    variables: Sequence[EmbeddingVariable], ids: Sequence[Any]
) -> list[NDArray[np.int64]]:
    checked: list[NDArray[np.int64]] = []
    try:
        for variable_ids in ids:
            checked.append(checks.ids(variable_ids))
    except EmbStoreError as error:
        raise _with_name(variables[len(checked)], error) from None
    return checked


def apply_many(
    variables: Sequence[EmbeddingVariable],
    ids: Sequence[checks.Ids | OnDevice],
    grads: Sequence[checks.Rows | OnDevice],
    global_step: int | None = None,
) -> None:
    """Trains each variable with its ids and gradients, as `variable.apply_gradients` does.

    ids and grads: one array for each variable. No variable may be listed twice.

    Batches whose ids and gradients are on one GPU are applied as one step on its stream, with as
    many kernel launches as one variable takes. Each server gets the parts of all batches for its
    shards at once, and the workers of a job wait for each other once.

    Variables with remote shards are trained all together or not at all: if one shard of any of
    them refuses its part, no row of any of them changes. (So the workers of a job must name the
    same variables in a step; pushes of other calls succeed or fail independently.)
    The batch of any other variable is applied whole or not at all, and an error of one stops no
    other. The first error is raised when all variables had their turn, and names the variable.
    Invalid arguments are found before anything is applied if the ids are on a GPU or the shards
    are remote.
    """
    variables, ids, grads = _checked_lists(variables, ids=ids, grads=grads)
    apply_bags(variables, ids, grads, [None] * len(variables), global_step)


def apply_bags(
    variables: Sequence[EmbeddingVariable],
    ids: Sequence[checks.Ids | OnDevice],
    grads: Sequence[checks.Rows | OnDevice],
    bags: Sequence[BagsOfIds | None],
    global_step: int | None = None,
) -> None:
    """Does what `apply_many` does, with bags of ids that share a gradient.

    bags: for each variable None, or the bags of its ids. Then its one shard must be in this
        process, ids an int64 array (n,) and grads a float32 array (bags, dim).
    """
    for variable in variables:
        variable.internals.check_trainable()
    if len(set(variables)) != len(variables):
        variable, times = Counter(variables).most_common(1)[0]
        raise InvalidArgumentError(
            f"{variable.name} is there {times} times; join its batches into one, since one step "
            "trains a row once"
        )
    if global_step is not None:
        global_step = checks.integer("global_step", global_step, at_least=0)
    tables = [variable.internals.table for variable in variables]
    if None not in tables and set(map(type, ids)) == set(map(type, grads)) == {np.ndarray}:
        batches = cast("list[_LocalBatch]", list(zip(tables, ids, grads, bags, strict=True)))
        try:  # the usual case
            errors = _apply_local(dict(enumerate(batches)), global_step)
        except (TypeError, InvalidArgumentError):
            pass  # No batch was applied. Below, the array is converted, or its error is raised.
        else:
            _raise_first(variables, errors)
            return
    steps: list[ApplyStep] = []
    local: dict[int, _LocalBatch] = {}
    others: list[int] = []
    remote_batches: list[tuple[EmbeddingVariable, Any, Any]] = []
    errors = {}  # of the variables in `local` and `others`
    for i, (variable, table, variable_ids, variable_grads, bag) in enumerate(
        zip(variables, tables, ids, grads, bags, strict=True)
    ):
        if bag is not None:
            local[i] = cast("Any", (table, variable_ids, variable_grads, bag))
        elif variable.internals.is_remote:
            with _NamedErrors(variable):
                remote_batches.append(
                    (variable, *variable._batch_on_host(variable_ids, variable_grads))
                )
        elif (
            is_on_device(variable_ids) and is_on_device(variable_grads) and variable.gpu is not None
        ):
            with _NamedErrors(variable):
                steps.append(ApplyStep.of(variable, variable_ids, variable_grads))
        elif table is not None:
            try:
                local[i] = (table, *variable._arrays_on_host(variable_ids, variable_grads), None)
            except EmbStoreError as error:
                errors[i] = error
        else:
            others.append(i)
    first_error: Exception | None = None
    try:
        apply_together(steps, global_step)
    except EmbStoreError as error:
        first_error = error
    for variable, refusal in push_to_remote_shards(remote_batches, global_step):
        first_error = first_error or _with_name(variable, refusal)
    errors |= _apply_local(local, global_step)
    for i in others:
        try:
            variables[i].apply_gradients(ids[i], grads[i], global_step)
        except EmbStoreError as error:
            errors[i] = error
    if first_error is not None:
        raise first_error
    _raise_first(variables, errors)


def _apply_local(
    batches: Mapping[int, _LocalBatch], global_step: int | None
) -> dict[int, Exception]:
    """Applies batches of tables in this process. Returns the errors of those that are refused."""
    errors: dict[int, Exception] = {}
    results = _core.apply_each(list(batches.values()), global_step)
    for (i, (_, keys, values, bag)), error_or_row in zip(batches.items(), results, strict=True):
        if isinstance(error_or_row, int):
            if bag is not None:
                values = values.repeat(np.diff(bag[0], append=len(keys)), axis=0)
            errors[i] = checks.not_finite(keys, values, error_or_row)
        elif error_or_row is not None:
            errors[i] = error_or_row
    return errors


def _raise_first(variables: Sequence[EmbeddingVariable], errors: Mapping[int, Exception]) -> None:
    if errors:
        first = min(errors)
        raise _with_name(variables[first], errors[first])


def prefetch_many(
    batch: Sequence[tuple[EmbeddingVariable, Sequence[checks.Ids | OnDevice]]],
) -> None:
    """Calls `prefetch` of each variable with its look-ups, with one request to each server."""
    lookups_to_send: list[RemoteLookup] = []
    try:
        for variable, look_ups in batch:
            with _NamedErrors(variable):
                if variable.internals.is_remote:
                    lookups_to_send += variable._add_prefetched(look_ups)
                else:
                    variable.prefetch(*look_ups)
    finally:
        send_lookups(lookups_to_send)


def _start_remote_lookups(
    variables: Sequence[EmbeddingVariable],
    keys: Mapping[int, NDArray[np.int64]],
    train: bool,
    count: bool,
) -> dict[int, RemoteLookup]:
    """Starts the look-ups of variables with remote shards, and returns them. keys and result:
    by the variable's index.
    """
    remote_lookups = {}
    for i, variable_ids in keys.items():
        if variables[i].internals.is_remote:
            with _NamedErrors(variables[i]):
                remote_lookups[i] = variables[i]._remote_lookup(
                    variable_ids.reshape(-1), train, count
                )
    send_lookups(list(remote_lookups.values()))
    return remote_lookups


def _checked_lists(variables: Any, **arguments: Any) -> list[list[Any]]:
    """Returns the variables and the arguments as lists. Raises InvalidArgumentError if an argument
    hasn't one entry for each variable.
    """
    check_variable_list(variables)
    lists: list[list[Any]] = []
    for name, argument in {"variables": variables, **arguments}.items():
        if not _has_order(argument):
            raise InvalidArgumentError(
                f"{name} must be a list, got {type(argument).__name__}; the lists' entries belong "
                "together by position"
            )
        lists.append(list(argument))
        if len(lists[-1]) != len(lists[0]):
            raise InvalidArgumentError(
                f"{name} must have one for each of {len(lists[0])} variables, got {len(lists[-1])}"
            )
    return lists


def _has_order(argument: object) -> bool:
    """Returns whether `argument` has entries in an order of their own, such as a list, an array or
    the values of a dict.
    """
    if isinstance(argument, (list, tuple)):  # the usual case
        return True
    if isinstance(argument, (Mapping, set, frozenset, str, bytes)):
        return False
    return hasattr(argument, "__len__") and checks.is_iterable(argument)


def _with_name(variable: EmbeddingVariable, error: Exception) -> Exception:
    """Returns the error itself; prefixes the variable's name to a message of embstore's."""
    if isinstance(error, EmbStoreError):
        message, *rest = error.args or ("",)
        # Looks only at the start: a name such as "ids" may be a word of the message by chance.
        if not str(message).startswith(
            (f"{variable.name}:", f"{variable.name}.part", f"{variable.name} is closed")
        ):
            error.args = (f"{variable.name}: {message}", *rest)
    return error


class _NamedErrors:
    """A scope whose errors name the variable."""

    def __init__(self, variable: EmbeddingVariable) -> None:
        self._variable = variable

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, Exception):
            _with_name(self._variable, error)
