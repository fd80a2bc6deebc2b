"""A table whose tiers are full is restored into another that has room for as many rows."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from durable_table import DIM as DURABLE_DIM
from durable_table import ROW_BYTES
from engine_storage import IN_MEMORY, Stack, row_bytes, skip_without_library, variable_with_options
from exports import assert_same
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import embstore as es

DIM = 3
OPTIMIZER = es.optimizers.Adagrad(0.1)
STACKS = [
    Stack(es.StorageType[name])
    for name in (
        "DRAM",
        "PMEM_LIBPMEM",
        "DRAM_PMEM",
        "DRAM_SSDHASH",
        "DRAM_LEVELDB",
        "DRAM_PMEM_SSDHASH",
        "DRAM_PMEM_LEVELDB",
        "HBM",
        "HBM_DRAM",
        "HBM_DRAM_SSDHASH",
    )
]
RANKED_KEYS = np.arange(-500, 4000, dtype=np.int64) * 7919


@contextlib.contextmanager
def variable(
    stack: Stack,
    rows: Sequence[int],
    strategy: es.CacheStrategy = es.CacheStrategy.LFU,
    ssdhash: es.SSDHashOption | None = None,
    path: Path | None = None,
) -> Iterator[es.EmbeddingVariable]:
    """Opens a variable with tiers of exactly `rows` rows each."""
    size = row_bytes(DIM, OPTIMIZER)
    sizes = [size * count for count in rows]
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as directory:
        places = stack.option(path or Path(directory), sizes)
        option = es.StorageOption(
            places.storage_type, places.storage_path, sizes, strategy, ssdhash_option=ssdhash
        )
        with variable_with_options(
            "var",
            DIM,
            option,
            initializer=es.initializers.RandomUniform(-1.0, 1.0, seed=7),
            optimizer=OPTIMIZER,
        ) as opened:
            yield opened


def fill(var: es.EmbeddingVariable, keys: NDArray[np.int64], seed: int) -> None:
    """Trains every key, some of them several times, in batches of several sizes."""
    random = np.random.default_rng(seed)
    for ids in np.array_split(random.permutation(keys), random.integers(1, 6)):
        grads = random.standard_normal((len(ids), var.dim)).astype(np.float32)
        var.apply_gradients(ids, grads)
    for _ in range(3):
        again = random.choice(keys, 50)
        var.apply_gradients(again, np.ones((50, var.dim), np.float32))
        var.lookup(random.choice(keys, 50))


def check_full(var: es.EmbeddingVariable) -> None:
    with pytest.raises(es.errors.StoreFullError):
        var.apply_gradients(np.array([1], np.int64), np.ones((1, var.dim), np.float32))


TIER_ROWS = st.one_of(st.integers(1, 40), st.integers(200, 700))


@st.composite
def tiers_of(draw: st.DrawFn, tiers: int, total: int) -> list[int]:
    """Draws tiers of any sizes for `total` rows in all."""
    cut = st.integers(1, total - 1)
    cuts = draw(st.lists(cut, min_size=tiers - 1, max_size=tiers - 1, unique=True))
    edges = [0, *sorted(cuts), total]
    return [end - begin for begin, end in itertools.pairwise(edges)]


@settings(max_examples=6, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("stack", STACKS, ids=lambda stack: stack.name)
def test_rows_that_fill_every_tier_are_restored(stack: Stack, data: st.DataObject) -> None:
    skip_without_library(stack.storage_type)
    rows = data.draw(st.lists(TIER_ROWS, min_size=stack.tiers, max_size=stack.tiers))
    strategy = data.draw(st.sampled_from(es.CacheStrategy))
    keys = RANKED_KEYS[: sum(rows)]
    with (
        tempfile.TemporaryDirectory(dir=IN_MEMORY) as directory,
        variable(stack, rows, strategy) as var,
    ):
        full, more = Path(directory) / "full", Path(directory) / "more"
        fill(var, keys, data.draw(st.integers(0, 1000)))
        check_full(var)
        es.save(full, [var], 0)
        var.apply_gradients(keys[::3], np.ones((len(keys[::3]), DIM), np.float32))
        es.save_incremental(more, [var], 1)
        wanted = var.export()
        others = [other for other in STACKS if other.tiers < len(keys)]
        twins = [(stack, rows)]
        if others:
            other = data.draw(st.sampled_from(others))
            twins.append((other, data.draw(tiers_of(other.tiers, len(keys)))))
        for twin_stack, twin_rows in twins:
            with variable(twin_stack, twin_rows) as twin:
                for _ in range(2):  # into an empty one, then into a full one
                    es.restore(full, [twin], incremental=[more])
                    assert_same(twin.export(), wanted)
                    check_full(twin)
                twin.drain()
                tiers = twin.stats()["tiers"]
                assert all(tier["rows"] <= tier["capacity_rows"] for tier in tiers)


@settings(max_examples=6, deadline=None)
@given(first=TIER_ROWS, last=TIER_ROWS, seed=st.integers(0, 1000))
def test_kept_files_of_a_full_table_are_taken_over(first: int, last: int, seed: int) -> None:
    stack = Stack(es.StorageType.DRAM_SSDHASH)
    kept = es.SSDHashOption(keep_files=True)
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as directory:
        with variable(stack, [first, last], ssdhash=kept, path=Path(directory)) as var:
            fill(var, RANKED_KEYS[: first + last], seed)
            wanted = var.export()
        with variable(stack, [first, last], ssdhash=kept, path=Path(directory)) as var:
            assert_same(var.export(), wanted)
            check_full(var)


def durable_variable(
    path: Path, storage_type: es.StorageType, cache_rows: int, pool_rows: int, ssd_rows: int
) -> es.EmbeddingVariable:
    path.mkdir(exist_ok=True)
    sizes = [cache_rows * ROW_BYTES, (4096 + 16 + pool_rows) * 256]
    if storage_type is es.StorageType.DRAM_PMEM_SSDHASH:
        sizes.append(ssd_rows * ROW_BYTES)
    return variable_with_options(
        "var",
        DURABLE_DIM,
        es.StorageOption(storage_type, str(path), sizes, durability="checkpoint"),
        optimizer=OPTIMIZER,
        restores=True,
    )


def fill_until_full(var: es.EmbeddingVariable, batch: int) -> int:
    """Brings keys until none has room any more, the last ones one by one. Returns how many."""
    count = 0
    while batch > 0:
        ids = np.arange(count, count + batch)
        try:
            var.apply_gradients(ids, np.ones((batch, var.dim), np.float32))
            count += batch
        except es.errors.StoreFullError:
            batch //= 2
    return count


@settings(max_examples=6, deadline=None)
@given(
    cache_rows=st.integers(1, 400),
    spare_rows=st.integers(64, 600),
    ssd_rows=st.integers(1, 600),
    batch=st.sampled_from([7, 100, 512]),
)
@pytest.mark.parametrize(
    "storage_type", [es.StorageType.DRAM_PMEM, es.StorageType.DRAM_PMEM_SSDHASH]
)
def test_rows_that_fill_a_durable_pool_are_restored(
    storage_type: es.StorageType, cache_rows: int, spare_rows: int, ssd_rows: int, batch: int
) -> None:
    pool_rows = cache_rows + max(cache_rows // 8, 256) + spare_rows
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as directory:
        path = Path(directory)
        with durable_variable(path / "rows", storage_type, cache_rows, pool_rows, ssd_rows) as var:
            fill_until_full(var, batch)
            es.save(path / "save", [var], 0)
            es.persist([var], path / "checkpoints")
            wanted = var.export()
        with durable_variable(
            path / "rows", storage_type, cache_rows, pool_rows, ssd_rows
        ) as again:
            es.restore_persisted([again], path / "checkpoints")
            assert_same(again.export(), wanted)
        with durable_variable(path / "twin", storage_type, cache_rows, pool_rows, ssd_rows) as twin:
            for _ in range(2):
                es.restore(path / "save", [twin])
                assert_same(twin.export(), wanted)
