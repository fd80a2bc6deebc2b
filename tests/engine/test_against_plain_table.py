"""Any sequence of calls, on any storage type, gives what a plain table gives: bit for bit."""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_storage import STACKS, Stack, StorageOf, capacities_of, made, on_device, row_bytes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from plain_rules import EVERY_RULE, RULE_IDS
from plain_table import PlainStoreFullError, PlainTable

import embstore as es
from embstore.errors import StoreFullError
from embstore.options import TierKind

# In all, spread over the stacks. A longer run, by hand:
# EMBSTORE_TEST_SEQUENCES=100000 pytest tests/engine -k any_sequence
SEQUENCES = int(os.environ.get("EMBSTORE_TEST_SEQUENCES", "600"))

INT64 = np.iinfo(np.int64)
IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None

# Few keys, so that sequences meet them again; the corners of int64 among them.
KEYS = st.one_of(
    st.integers(-4, 12),
    st.sampled_from([int(INT64.min), int(INT64.min) + 1, int(INT64.max), -(2**32), 2**32]),
    st.integers(int(INT64.min), int(INT64.max)),
)
BATCHES = st.lists(KEYS, max_size=24)


@st.composite
def applies(draw: st.DrawFn, dim: int) -> tuple[str, Any]:
    ids = draw(BATCHES)
    grads = draw(hnp.arrays(np.float32, (len(ids), dim), elements=st.floats(-100, 100, width=32)))
    return "apply", (ids, grads, draw(st.none() | st.integers(0, 2**40)))


Call = tuple[str, Any, bool]  # its name, its argument, and whether ids are on the device


def calls(dim: int, *, asks_ahead: bool) -> st.SearchStrategy[list[Call]]:
    reads = ["lookup", "serve", "evaluate", "freq", "version", "tier"]
    names = [*reads, *["prefetch"] * asks_ahead]
    read = st.tuples(st.sampled_from(names), BATCHES)
    whole = ["export", "count", "drain", "restore", "move", "reopen"]
    call = applies(dim) | applies(dim) | read | st.tuples(st.sampled_from(whole), st.none())
    return st.lists(st.builds(lambda one, where: (*one, where), call, st.booleans()), max_size=12)


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
        if is_on_device:  # where nobody waits to see whether there is room
            plain.leave_out_apply()
    else:
        apply()


def check_tiers(
    var: es.EmbeddingVariable, plain: PlainTable, *, in_order: bool = True, are_up: bool = True
) -> None:
    """in_order: that the first tiers have the rows which rank highest. are_up: that they are full
    before the next tier has any."""
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
    # Mostly so few that rows move all the time, and sometimes too few in all.
    upper_rows = data.draw(st.sampled_from([1, 2, 3, 5, 8, 300]), label="upper_rows")
    last_rows = data.draw(st.sampled_from([600, 600, 600, 12]), label="last_rows")
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
        return made("var", dim, storage, optimizer=optimizer, partition_num=partitions, init=init)

    partition_nums = st.sampled_from([1, 1, 3])
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
    are_ranked = True  # which a table of one tier doesn't do
    are_up = True  # where rows of kept files come as they are used

    def check_where_rows_lie() -> None:
        # Rows that were asked for ahead stay in HBM however they rank.
        in_order = are_ranked and not (asks_ahead and storage.has_hbm)
        check_tiers(var, plain, in_order=in_order, are_up=are_up)

    with contextlib.ExitStack() as scope:
        saved = Path(scope.enter_context(tempfile.TemporaryDirectory(dir=IN_MEMORY)))
        var = opened(storage, partitions)
        scope.callback(lambda: var.close())
        for name, argument, is_on_device in data.draw(
            calls(dim, asks_ahead=asks_ahead), label="calls"
        ):
            if name == "drain":
                check_where_rows_lie()
            elif name == "reopen" and storage.keeps_rows:
                var.close()
                var = opened(storage, partitions)
                are_ranked = are_up = False
            elif name in ("restore", "move"):
                es.save(saved, [var], 0)
                if name == "move":
                    var.close()
                    are_ranked = are_ranked and len(storage.tiers()) > 1
                    storage = storage_on(data.draw(st.sampled_from(STACKS), label="stack"), 600)
                    partitions = data.draw(partition_nums, label="partition_num")
                    plain.capacities = capacities_of(storage, row_size)
                    plain.partition_num = partitions
                    var = opened(storage, partitions)
                es.restore(saved, [var])
                are_up = True
            elif name != "reopen":
                check_call(var, plain, name, argument, is_on_device and storage.has_hbm)
        check_where_rows_lie()
        check_export(var, plain)


SKEWED_INITIALIZER = es.initializers.TruncatedNormal(seed=3)


@functools.cache
def trained_with_skewed_keys(
    optimizer: es.optimizers.Optimizer, dim: int
) -> tuple[PlainTable, list[tuple[Any, Any, Any]]]:
    """A plain table, and of each of its steps the ids, the gradients and what is read before."""
    random = np.random.RandomState(5)
    plain = PlainTable(SKEWED_INITIALIZER((4096, dim)), optimizer)
    steps: list[tuple[Any, Any, Any]] = []
    for step in range(30):
        ids = (random.zipf(1.3, 200) % 1500) * 2_654_435_761
        grads = random.standard_normal((len(ids), dim)).astype(np.float32)
        steps.append((ids, grads, plain.lookup(ids.tolist(), train=step % 3 > 0)))
        plain.apply_gradients(ids.tolist(), grads, None)
    return plain, steps


# One column, and whole vectors and a rest; any sequence of calls has such with every optimizer.
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
    var = made("var", dim, storage, initializer=SKEWED_INITIALIZER, optimizer=optimizer)
    with var:
        plain, steps = trained_with_skewed_keys(optimizer, dim)
        for step, (ids, grads, rows) in enumerate(steps):
            assert same_bits(var.lookup(ids, train=step % 3 > 0), rows)
            var.apply_gradients(ids, grads)
        plain.capacities = capacities_of(storage, row_size)
        check_tiers(var, plain)
        check_export(var, plain)
