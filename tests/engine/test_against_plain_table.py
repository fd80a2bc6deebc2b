"""Any sequence of calls, on any storage type, gives the same bits as a plain table."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_variables import fail_to_save
from engine_storage import (
    IN_MEMORY,
    STACKS,
    Stack,
    StorageOf,
    capacities_of,
    on_device,
    row_bytes,
    variable_with_options,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from plain_rules import EVERY_RULE, RULE_IDS
from plain_table import PlainStoreFullError, PlainTable

import embstore as es
from embstore.errors import InvalidArgumentError, StoreFullError
from embstore.options import TierKind

# In all, spread over the stacks. For a longer run by hand:
# EMBSTORE_TEST_SEQUENCES=100000 pytest tests/engine -k any_sequence
SEQUENCES = int(os.environ.get("EMBSTORE_TEST_SEQUENCES", "600"))

INT64 = np.iinfo(np.int64)

# Few keys, so that sequences meet them again; the limits of int64 among them.
KEYS = st.one_of(
    st.integers(-4, 12),
    st.sampled_from([int(INT64.min), int(INT64.min) + 1, int(INT64.max), -(2**32), 2**32]),
    st.integers(int(INT64.min), int(INT64.max)),
)
BATCHES = st.lists(KEYS, max_size=24)


STEPS = st.integers(0, 2**40)
EVICTIONS = [None, es.GlobalStepEvict(2**39), es.L2WeightEvict(1.0)]
SAVES = ["save", "increment", "failing save", "failing increment", "move"]
Call = tuple[str, Any, bool]  # its name, its argument, and whether ids are on the device


@st.composite
def updates(draw: st.DrawFn, dim: int) -> tuple[str, Any]:
    name = draw(st.sampled_from(["apply", "apply", "apply", "put"]))
    ids = draw(BATCHES if name == "apply" else BATCHES.map(lambda ids: list(dict.fromkeys(ids))))
    rows = draw(hnp.arrays(np.float32, (len(ids), dim), elements=st.floats(-100, 100, width=32)))
    return name, (ids, rows, draw(STEPS if name == "put" else st.none() | STEPS))


def calls(dim: int, *, asks_ahead: bool, removes: bool) -> st.SearchStrategy[list[Call]]:
    reads = ["lookup", "serve", "evaluate", "freq", "version", "tier"]
    read = st.tuples(st.sampled_from([*reads, *["prefetch"] * asks_ahead]), BATCHES)
    whole = st.tuples(st.sampled_from(["export", "count", "drain", "restore", "reopen"]), st.none())
    saves = st.tuples(st.sampled_from(SAVES), STEPS)
    changes: st.SearchStrategy[tuple[str, Any]]
    changes = st.tuples(st.just("rate"), st.floats(2**-9, 1, width=32))
    if removes:
        changes |= st.tuples(st.just("remove"), BATCHES) | st.tuples(st.just("evict"), STEPS)
    call = updates(dim) | updates(dim) | read | whole | saves | changes
    placed = st.builds(lambda one, where: (*one, where), call, st.booleans())
    return st.lists(placed, min_size=6, max_size=24)


def same_bits(got: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> bool:
    return (
        got.shape == wanted.shape
        and got.dtype == wanted.dtype
        and got.tobytes() == wanted.tobytes()
    )


def check_call(
    var: es.EmbeddingVariable, plain: PlainTable, name: str, argument: Any, is_on_device: bool
) -> None:
    place: Callable[..., Any] = on_device if is_on_device else np.asarray
    if name == "apply":
        check_apply(var, plain, *argument, is_on_device=is_on_device)
    elif name == "put":
        ids, rows, version = argument
        try:
            plain.put(ids, rows, version)
        except PlainStoreFullError:
            with pytest.raises(StoreFullError):
                var.put(ids, rows, version=version)
        else:
            var.put(ids, rows, version=version)
    elif name == "rate":
        var.learning_rate = plain.learning_rate = argument
    elif name == "remove":
        assert var.remove(argument) == plain.remove(argument)
    elif name == "evict":
        assert var.evict(argument) == plain.evict(argument, var.ev_option.evict_option)
    elif name in ("lookup", "serve", "evaluate"):
        how = {"train": name == "lookup", "count": name != "evaluate"}
        rows = var.lookup(place(argument, np.int64), **how)
        rows = rows.numpy() if is_on_device else rows
        assert same_bits(rows, plain.lookup(argument, train=name != "serve"))
    elif name == "export":
        check_export(var, plain)
    elif name == "count":
        assert var.total_count() == plain.total_count()
    elif name == "prefetch":
        var.prefetch(place(argument, np.int64))
    elif name == "tier":
        has_row = [tier >= 0 for tier in plain.lookup_tier(argument)]
        assert (var.lookup_tier(np.array(argument, np.int64)) >= 0).tolist() == has_row
    else:
        readers: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
            "freq": (var.get_frequency, plain.get_frequency),
            "version": (var.get_version, plain.get_version),
        }
        read, read_plain = readers[name]
        assert read(np.array(argument, np.int64)).tolist() == read_plain(argument)


def check_apply(
    var: es.EmbeddingVariable,
    plain: PlainTable,
    ids: list[int],
    grads: np.ndarray[Any, Any],
    step: int | None,
    *,
    is_on_device: bool,
) -> None:
    def apply() -> None:
        keys = np.array(ids, np.int64)
        if is_on_device:
            var.apply_gradients(on_device(keys), on_device(grads, np.float32), step)
            var.synchronize()
        else:
            var.apply_gradients(keys, grads, step)

    try:
        plain.apply_gradients(ids, grads, step)
    except PlainStoreFullError:
        with pytest.raises(StoreFullError):
            apply()
        if is_on_device:  # the apply was counted before its error was known
            plain.count_skipped_apply()
    else:
        apply()


def check_tiers(
    var: es.EmbeddingVariable, plain: PlainTable, *, in_order: bool = True, are_up: bool = True
) -> None:
    """Checks in which tiers the rows lie.

    in_order: the first tiers have the rows of highest rank. are_up: a tier is full before the next
    tier has rows.
    """
    var.drain()
    keys = plain.export()["keys"].tolist()
    tiers_of_keys = var.lookup_tier(keys).tolist()
    if in_order:
        assert tiers_of_keys == plain.lookup_tier(keys)
    else:
        assert -1 not in tiers_of_keys
    tiers = var.stats()["tiers"]
    wanted = plain.rows_in_tiers()
    counts = [sum(tier["rows"] for tier in tiers[t :: len(wanted)]) for t in range(len(wanted))]
    assert sum(counts) == sum(wanted)
    if are_up:
        assert counts == wanted


def check_export(var: es.EmbeddingVariable, plain: PlainTable) -> None:
    got, wanted = var.export(), plain.export()
    assert list(got) == list(wanted)
    for column in wanted:
        assert same_bits(got[column], wanted[column]), column


@settings(
    max_examples=max(SEQUENCES // len(STACKS), 1),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(data=st.data())
def test_any_sequence_of_calls_gives_what_a_plain_table_gives(
    data: st.DataObject, stack: Stack, storage_of: StorageOf
) -> None:
    dim = data.draw(st.sampled_from([1, 2, 3, 4, 7, 8, 16, 17, 33]), label="dim")
    rows = data.draw(st.sampled_from([1, 2, 8, 4096]), label="default_value_dim")
    optimizer = data.draw(st.sampled_from(EVERY_RULE), label="optimizer")
    strategy = data.draw(st.sampled_from(es.CacheStrategy), label="cache_strategy")
    keep_files = data.draw(st.booleans(), label="keep_files")
    # Mostly so few that rows move all the time; sometimes too few for the whole table or a
    # partition.
    upper_rows = data.draw(st.sampled_from([1, 2, 3, 5, 8, 300]), label="upper_rows")
    last_rows = data.draw(st.sampled_from([600, 600, 600, 12, 1]), label="last_rows")
    row_size = row_bytes(dim, optimizer)
    initializer = es.initializers.RandomNormal(stddev=1.0, seed=7)

    def storage_on(stack: Stack, last_rows: int) -> es.StorageOption:
        storage = storage_of(
            stack,
            ((stack.tiers - 1) * upper_rows + last_rows) * row_size,
            upper_bytes=upper_rows * row_size,
            cache_strategy=strategy,
        )
        if not (keep_files and storage.tiers()[-1].kind is TierKind.SSDHASH):
            return storage
        return replace(storage, ssdhash_option=es.SSDHashOption(keep_files=True))

    def opened(storage: es.StorageOption, partitions: int) -> es.EmbeddingVariable:
        init = es.InitializerOption(initializer, default_value_dim=rows)
        return variable_with_options(
            "var",
            dim,
            storage,
            init=init,
            evict=evict,
            optimizer=optimizer,
            partition_num=partitions,
        )

    partition_nums = st.sampled_from([1, 1, 3])
    removes = data.draw(st.booleans(), label="removes")
    evict = data.draw(st.sampled_from(EVICTIONS if removes else [None]), label="evict_option")
    storage = storage_on(stack, last_rows)
    partitions = data.draw(partition_nums, label="partition_num")
    plain = PlainTable(
        initializer((rows, dim)),
        optimizer,
        capacities=capacities_of(storage, row_size),
        cache_strategy=strategy,
        partition_num=partitions,
    )
    asks_ahead = data.draw(st.booleans(), label="asks_ahead")
    are_ranked = True  # whether rows rank as in `plain`; a table of one tier doesn't rank them
    are_up = True  # not if rows of kept files, or below removed rows, come only as they are used
    chain: list[Path] = []  # the saves; the state at the last of them is:
    saved, saved_at, were_ranked = plain, 0, True
    numbers = itertools.count()
    goes_on = False  # whether an increment may follow
    is_served = False  # since the last full save; an increment has the ranks of trained rows only

    def check_where_rows_lie() -> None:
        # Prefetched rows stay in HBM, whatever their rank.
        in_order = are_ranked and are_up and not (asks_ahead and storage.has_hbm)
        check_tiers(var, plain, in_order=in_order, are_up=are_up)

    with contextlib.ExitStack() as scope:
        folder = Path(scope.enter_context(tempfile.TemporaryDirectory(dir=IN_MEMORY)))
        var = opened(storage, partitions)
        scope.callback(lambda: var.close())
        drawn = data.draw(calls(dim, asks_ahead=asks_ahead, removes=removes), label="calls")
        at_last = [(name, 0, False) for name in ("drain", "export", "increment", "restore")]
        for name, argument, is_on_device in drawn + at_last:
            rows_before = plain.total_count()[0]
            if name == "drain":
                check_where_rows_lie()
            elif name == "reopen" and storage.keeps_rows:
                var.close()
                var = opened(storage, partitions)
                are_ranked = are_up = goes_on = False
            elif name in SAVES:
                path = folder / str(next(numbers))
                if not goes_on:
                    with pytest.raises(InvalidArgumentError, match="neither saved nor restored"):
                        es.save_incremental(path, [var], argument)
                is_increment = goes_on and name.endswith("increment")
                save = es.save_incremental if is_increment else es.save
                plain.evict(argument, evict)
                if name.startswith("failing"):
                    fail_to_save(save, path, var, argument)
                else:
                    save(path, [var], argument)
                    chain = [*chain, path] if is_increment else [path]
                    are_ranked = are_ranked and len(storage.tiers()) > 1
                    is_served = is_served and is_increment
                    saved, saved_at, were_ranked = copy.deepcopy(plain), argument, are_ranked
                    were_ranked = were_ranked and not is_served
                    goes_on = True
                if name == "move":
                    var.close()
                    storage = storage_on(data.draw(st.sampled_from(STACKS), label="stack"), 600)
                    before = partitions
                    partitions = data.draw(partition_nums, label="partition_num")
                    var = opened(storage, partitions)
                    # Each partition has a clock of its own.
                    were_ranked = were_ranked and before in (1, partitions)
            if name in ("restore", "move") and chain:
                assert es.restore(chain[0], [var], incremental=chain[1:]) == saved_at
                plain, are_ranked, are_up, goes_on = copy.deepcopy(saved), were_ranked, True, True
                is_served = False
                plain.capacities = capacities_of(storage, row_size)
                plain.partition_num = partitions
            elif name not in ("drain", "reopen", "restore", *SAVES):
                check_call(var, plain, name, argument, is_on_device and storage.has_hbm)
                is_served = is_served or name == "serve"
            if name in ("remove", "evict", *SAVES) and name != "move":
                are_up = are_up and plain.total_count()[0] == rows_before
        check_where_rows_lie()
        check_export(var, plain)
        assert var.learning_rate == plain.learning_rate


SKEWED_INITIALIZER = es.initializers.TruncatedNormal(seed=3)


@functools.cache
def trained_with_skewed_keys(
    optimizer: es.optimizers.Optimizer, dim: int
) -> tuple[PlainTable, list[tuple[Any, Any, Any]]]:
    """Returns a plain table and, for each step, the ids, the gradients and the rows read before."""
    random = np.random.RandomState(5)
    plain = PlainTable(SKEWED_INITIALIZER((4096, dim)), optimizer)
    steps: list[tuple[Any, Any, Any]] = []
    for step in range(30):
        ids = (random.zipf(1.3, 200) % 1500) * 2_654_435_761
        grads = random.standard_normal((len(ids), dim)).astype(np.float32)
        steps.append((ids, grads, plain.lookup(ids.tolist(), train=step % 3 > 0)))
        plain.apply_gradients(ids.tolist(), grads, None)
    return plain, steps


# One column, and whole vectors with a rest. The test above combines these with every optimizer.
@pytest.mark.parametrize(
    ("optimizer", "dim"),
    [(rule, (30, 1)[i % 2]) for i, rule in enumerate(EVERY_RULE)],
    ids=RULE_IDS,
)
def test_a_long_training_with_skewed_keys_gives_what_a_plain_table_gives(
    stack: Stack,
    storage_of: StorageOf,
    optimizer: es.optimizers.Optimizer,
    dim: int,
) -> None:
    row_size = row_bytes(dim, optimizer)
    storage = storage_of(stack, 3000 * row_size, upper_bytes=40 * row_size)
    var = variable_with_options(
        "var", dim, storage, initializer=SKEWED_INITIALIZER, optimizer=optimizer
    )
    with var:
        plain, steps = trained_with_skewed_keys(optimizer, dim)
        for step, (ids, grads, rows) in enumerate(steps):
            assert same_bits(var.lookup(ids, train=step % 3 > 0), rows)
            var.apply_gradients(ids, grads)
        plain.capacities = capacities_of(storage, row_size)
        check_tiers(var, plain)
        check_export(var, plain)
