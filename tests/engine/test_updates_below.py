"""With LFU, a row that the rows above outrank, before an update and after it, is updated where it
lies, if that is memory, and moves down past tiers whose rows all outrank it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_storage import GPU, MakeVariable, Stack, row_bytes
from numpy.typing import NDArray
from test_promotion import Ranks, tiers_of

import embstore as es

DIM = 4
ADAGRAD = es.optimizers.Adagrad(0.1)
ROW_BYTES = row_bytes(DIM, ADAGRAD)
UPPER, LOWER = np.arange(10), np.arange(10, 200)

Ids = NDArray[np.int64]
Train = Callable[[es.EmbeddingVariable, Ids], None]


def gradients(ids: Ids) -> NDArray[np.float32]:
    return np.random.default_rng(int(ids.sum())).standard_normal((ids.size, DIM), np.float32)


def by_the_host(var: es.EmbeddingVariable, ids: Ids) -> None:
    var.apply_gradients(ids, gradients(ids))


def by_the_gpu(var: es.EmbeddingVariable, ids: Ids) -> None:
    var.apply_gradients(es.DeviceArray(ids, GPU), es.DeviceArray(gradients(ids), GPU))
    var.synchronize()


def accesses(var: es.EmbeddingVariable, tier: int, access: es.Access) -> int:
    of: list[dict[str, Any]] = var.stats()["tiers"][tier]["accesses"]
    return sum(count["accesses"] for count in of if count["access"] is access)


def train(var: es.EmbeddingVariable, ranks: Ranks, ids: Ids, how: Train = by_the_host) -> None:
    how(var, ids)
    ranks.access(ids)


def ranked(var: es.EmbeddingVariable, times: int = 9) -> Ranks:
    """Trains the rows below once and those above `times` times, so that these rank higher."""
    ranks = Ranks(LOWER[-1] + 1)
    train(var, ranks, np.concatenate([LOWER, UPPER]))
    for _ in range(times - 1):
        train(var, ranks, UPPER)
    return ranks


@pytest.mark.parametrize(
    ("stack", "how"),
    [
        (Stack(es.StorageType.DRAM_PMEM), by_the_host),
        (Stack(es.StorageType.DRAM_PMEM, memkind=True), by_the_host),
        (Stack(es.StorageType.DRAM_PMEM_SSDHASH), by_the_host),
        (Stack(es.StorageType.HBM_DRAM), by_the_gpu),
        (Stack(es.StorageType.HBM_DRAM_SSDHASH), by_the_host),
        (Stack(es.StorageType.HBM_DRAM_SSDHASH), by_the_gpu),
    ],
    ids=lambda case: case.name if isinstance(case, Stack) else "",
)
def test_a_row_that_stays_outranked_is_updated_where_it_is(
    make_variable: MakeVariable, tmp_path: Path, stack: Stack, how: Train
) -> None:
    sizes = [UPPER.size * ROW_BYTES, *[1 << 20] * (stack.tiers - 1)]
    var = make_variable(dim=DIM, optimizer=ADAGRAD, storage=stack.option(tmp_path, sizes))
    plain = make_variable(dim=DIM, optimizer=ADAGRAD)
    ranks, _ = ranked(var), ranked(plain)
    assert tiers_of(var) == ranks.tiers([UPPER.size])

    some = LOWER[::9]
    before = var.stats()
    updated, stored = (accesses(var, 1, access) for access in (es.Access.UPDATE, es.Access.STORE))
    for _ in range(7):
        train(var, ranks, some, how)
        by_the_host(plain, some)
    assert tiers_of(var) == ranks.tiers([UPPER.size])
    after = var.stats()
    assert (after["promotions"], after["demotions"]) == (before["promotions"], before["demotions"])
    assert accesses(var, 1, es.Access.UPDATE) - updated == 2 * 7 * some.size  # rows and headers
    assert accesses(var, 1, es.Access.STORE) == stored
    assert var.get_frequency(some).tolist() == [8] * some.size
    assert var.lookup(some, train=True).tobytes() == plain.lookup(some, train=True).tobytes()

    for _ in range(2):  # now they outrank the rows above
        train(var, ranks, some, how)
        by_the_host(plain, some)
    assert tiers_of(var) == ranks.tiers([UPPER.size])
    assert set(var.lookup_tier(some[-UPPER.size :])) == {0}
    every = np.arange(LOWER[-1] + 1)
    assert var.lookup(every, train=True).tobytes() == plain.lookup(every, train=True).tobytes()


@pytest.mark.parametrize("kind", [es.StorageType.HBM_DRAM, es.StorageType.HBM_DRAM_SSDHASH])
def test_a_row_that_came_up_to_be_updated_goes_down_past_a_gpu_whose_rows_all_outrank_it(
    make_variable: MakeVariable, tmp_path: Path, kind: es.StorageType
) -> None:
    stack = Stack(kind)
    sizes = [UPPER.size * ROW_BYTES, *[1 << 20] * (stack.tiers - 1)]
    var = make_variable(dim=DIM, optimizer=ADAGRAD, storage=stack.option(tmp_path, sizes))
    ranks = ranked(var)
    assert tiers_of(var) == ranks.tiers([UPPER.size])
    stored = accesses(var, 0, es.Access.STORE)
    for _ in range(3):
        train(var, ranks, LOWER)
        assert tiers_of(var) == ranks.tiers([UPPER.size])
    assert accesses(var, 0, es.Access.STORE) == stored


def test_a_row_comes_up_once_it_outranks_those_that_replaced_evicted_rows(
    make_variable: MakeVariable, tmp_path: Path
) -> None:
    stack = Stack(es.StorageType.DRAM_PMEM)
    storage = stack.option(tmp_path, [UPPER.size * ROW_BYTES, 1 << 20])
    var = make_variable(
        dim=DIM, optimizer=ADAGRAD, storage=storage, evict=es.GlobalStepEvict(50), name="var"
    )

    def train_at(step: int, ids: Ids) -> None:
        var.apply_gradients(ids, gradients(ids), global_step=step)

    for _ in range(9):
        train_at(1, UPPER)
    train_at(100, LOWER)
    var.drain()
    es.save(tmp_path / "save", [var], 100)
    assert var.total_count() == (LOWER.size, DIM)
    others = 1000 + UPPER
    train_at(100, others)  # as many as there is room for, so that none has to go down
    assert set(var.lookup_tier(others)) == {0}
    train_at(100, LOWER[:3])
    var.drain()
    assert var.lookup_tier(LOWER[:3]).tolist() == [0] * 3
