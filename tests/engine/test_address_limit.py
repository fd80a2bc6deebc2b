"""Tables in processes whose address space is limited (RLIMIT_AS, which `ulimit -v` sets)."""

from __future__ import annotations

import resource
import tempfile
from pathlib import Path

import numpy as np
import pytest
from engine_storage import variable_with_options
from programs import run_function

import embstore as es

MIB = 1 << 20
GIB = 1 << 30
DIM = 16
ROW_BYTES = DIM * 4


def limit_addresses(size_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (size_bytes, resource.RLIM_INFINITY))


def addresses_in_use() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def variable(
    path: str, first_tier_rows: int, partition_num: int, name: str = "var", dim: int = DIM
) -> es.EmbeddingVariable:
    return variable_with_options(
        name,
        dim,
        es.StorageOption(es.StorageType.DRAM_SSDHASH, path, [first_tier_rows * dim * 4]),
        initializer=es.initializers.Zeros(),
        optimizer=es.optimizers.SGD(0.5),
        partition_num=partition_num,
    )


def check_rows(var: es.EmbeddingVariable, rows: int, updates: int) -> None:
    for ids in np.array_split(np.arange(rows), 8):
        assert (var.lookup(ids, train=True) == -0.5 * updates).all()


def train_more_than_the_first_tier_holds() -> None:
    limit_addresses(16 * GIB)
    rows = 1_000_000
    with tempfile.TemporaryDirectory() as path, variable(path, rows // 50, 4) as var:
        for step in range(2):
            var.apply_gradients(np.arange(rows), np.ones((rows, DIM), np.float32))
            check_rows(var, rows, step + 1)


def make_many_tables() -> None:
    """Makes tables that each reserve addresses for large batches, and leave the last enough."""
    limit_addresses(16 * GIB)
    rows = 20_000
    with tempfile.TemporaryDirectory() as path:
        tables = [variable(f"{path}/{n}", 1000, 4, f"var_{n}") for n in range(60)]
        for var in (tables[0], tables[-1]):
            var.apply_gradients(np.arange(rows), np.ones((rows, DIM), np.float32))
            check_rows(var, rows, 1)
        np.empty(4 * GIB, np.uint8)  # addresses that the tables leave to others
        for var in tables:
            var.close()
        # Closed tables give their addresses back: the next has as many as the first.
        with variable(f"{path}/next", 1000, 1, "next") as var:
            var.apply_gradients(np.arange(1_000_000), np.ones((1_000_000, DIM), np.float32))


def refuse_a_batch_for_which_there_are_no_addresses() -> None:
    dim = 256
    rows, some = 200_000, 1000
    ids = np.arange(rows)
    gradients = np.ones((rows, dim), np.float32)
    limit = addresses_in_use() + GIB
    with tempfile.TemporaryDirectory() as path:
        limit_addresses(limit)
        with variable(path, some, 1, dim=dim) as var:
            var.apply_gradients(ids[:some], gradients[:some])
            told = rf"{limit} bytes of addresses \(RLIMIT_AS\).*ulimit -v.* batch smaller"
            with pytest.raises(es.errors.StoreFullError, match=told):
                var.apply_gradients(ids, gradients)
            assert var.total_count()[0] == some
            assert (var.lookup(ids[:some], train=True) == -0.5).all()
            for part in np.array_split(ids, 40):
                var.apply_gradients(part, gradients[: part.size])
            check_rows(var, some, 2)
            assert var.total_count()[0] == rows
        limit_addresses(resource.RLIM_INFINITY)
        with variable(path, some, 1, dim=dim) as var:
            var.apply_gradients(ids, gradients)
            assert var.total_count()[0] == rows


def refuse_a_tier_for_which_there_are_no_addresses() -> None:
    with tempfile.TemporaryDirectory() as path:
        limit_addresses(addresses_in_use() + GIB)
        with pytest.raises(es.errors.StorageError, match=r"RLIMIT_AS.*ulimit -v"):
            variable(path, 4 * GIB // ROW_BYTES, 1)


@pytest.mark.parametrize(
    "call",
    [
        train_more_than_the_first_tier_holds,
        make_many_tables,
        refuse_a_batch_for_which_there_are_no_addresses,
        refuse_a_tier_for_which_there_are_no_addresses,
    ],
    ids=lambda call: call.__name__,
)
def test_a_process_whose_addresses_are_limited_can(call) -> None:  # type: ignore[no-untyped-def]
    run_function("test_address_limit", f"{call.__name__}()")
