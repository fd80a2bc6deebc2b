"""The order of an epoch's rows, and their split between workers."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.criteo_deepctr.epochs import (
    Epochs,
    FileEpochs,
    GeneratedEpochs,
    Order,
    Worker,
    worker_batches,
)
from benchmarks.criteo_deepctr.feature_keys import feature_keys
from pmemlab.workloads.batches import Batch, DataError
from pmemlab.workloads.criteo import CriteoSource
from pmemlab.workloads.criteo_file import write_raw
from pmemlab.workloads.synthetic import SyntheticSource

SHARED_DATA = Path(__file__).parents[3] / "shared" / "data"
ORDER = Order(seed=1, epoch=0, batch_size=8, shuffled_rows=50)

sizes = st.integers(1, 60)


def parts(rows: int, order: Order, workers: int) -> list[list[list[int]]]:
    return [
        list(worker_batches(iter(range(rows)), order, Worker(number, workers)))
        for number in range(workers)
    ]


@given(rows=st.integers(0, 300), batch_size=sizes, shuffled=sizes, workers=st.integers(1, 4))
def test_workers_share_the_batches_of_one_in_turn(
    rows: int, batch_size: int, shuffled: int, workers: int
) -> None:
    order = Order(1, 0, batch_size, shuffled)
    (alone,) = parts(rows, order, 1)
    together = parts(rows, order, workers)
    whole_batches = rows // (batch_size * workers)
    for number, own in enumerate(together):
        assert own[:whole_batches] == alone[number : whole_batches * workers : workers]


@given(rows=st.integers(0, 300), batch_size=sizes, shuffled=sizes, workers=st.integers(1, 4))
def test_every_row_is_trained_once_except_for_fewer_rows_than_workers(
    rows: int, batch_size: int, shuffled: int, workers: int
) -> None:
    together = parts(rows, Order(1, 0, batch_size, shuffled), workers)
    trained = [row for own in together for batch in own for row in batch]
    assert len(set(trained)) == len(trained) > rows - workers
    assert set(trained) <= set(range(rows))
    assert len({tuple(map(len, own)) for own in together}) == 1, "one would wait for another"


def test_the_order_follows_from_seed_and_epoch() -> None:
    def first(order: Order) -> list[list[int]]:
        return list(worker_batches(iter(range(100)), order, Worker()))

    assert first(ORDER) == first(ORDER)
    others = [replace(ORDER, epoch=1), replace(ORDER, seed=2)]
    orders = [first(ORDER), *map(first, others)]
    assert len({str(order) for order in orders}) == 3
    assert all(sorted(itertools.chain(*order)) == list(range(100)) for order in orders)


def test_no_more_rows_are_held_than_are_shuffled() -> None:
    read = 0

    def endless() -> Iterator[int]:
        nonlocal read
        while True:
            read += 1
            yield read

    own = worker_batches(endless(), ORDER, Worker(1, 2))
    for batch in range(1, 100):
        next(own)
        assert read <= 2 * batch * ORDER.batch_size + ORDER.shuffled_rows


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    write_raw(path, SyntheticSource(1, 2000), 6000)
    assert path.stat().st_size > 1_500_000
    epochs = FileEpochs(CriteoSource(path), 10)
    order = Order(1, 0, 64, shuffled_rows=256)
    next(epochs.batches(order, Worker()))  # allocations that are made once
    tracemalloc.start()
    try:
        rows = sum(len(batch) for batch in epochs.batches(order, Worker()))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert rows == 5400
    assert peak < 750_000


def sources(tmp_path: Path) -> list[Epochs]:
    path = tmp_path / "rows"
    write_raw(path, SyntheticSource(1, 2000), 200)
    return [
        FileEpochs(CriteoSource(path), 15),
        GeneratedEpochs(SyntheticSource(1, 2000, 15), 180),
    ]


def as_rows(batches: Iterator[Batch]) -> list[bytes]:
    return [
        np.concatenate([batch.labels[i : i + 1], batch.dense[i]]).tobytes()
        + batch.keys[i].tobytes()
        for batch in batches
        for i in range(len(batch))
    ]


def test_two_workers_train_each_row_once_together(tmp_path: Path) -> None:
    for epochs in sources(tmp_path):
        order = Order(1, 0, 32)
        alone = as_rows(epochs.batches(order, Worker()))
        both = [as_rows(epochs.batches(order, Worker(number, 2))) for number in range(2)]
        assert len(both[0]) == len(both[1]) == 90
        assert set(both[0] + both[1]) == set(alone)
        assert len(alone) == epochs.rows_to_train() == 180
        held_out = as_rows(iter([epochs.held_out()]))
        assert len(held_out) == 15
        assert not set(held_out) & set(alone)


def test_generated_rows_are_the_same_in_another_order_in_each_epoch(tmp_path: Path) -> None:
    for epochs in sources(tmp_path):
        first, second = (as_rows(epochs.batches(Order(1, e, 32), Worker())) for e in range(2))
        assert first != second
        assert sorted(first) == sorted(second)


def test_a_bad_line_is_named_wherever_it_is_shuffled_to(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    write_raw(path, SyntheticSource(1, 2000), 100)
    lines = path.read_text().splitlines()
    lines[41] = "2" + lines[41][1:]
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match=r"rows:42: label is '2'"):
        list(FileEpochs(CriteoSource(path), 10).batches(ORDER, Worker()))


@pytest.mark.parametrize(
    ("name", "rows"), [("criteo_raw_200.csv", 180), ("criteo_encoded_100.csv", 90)]
)
def test_the_shared_files_are_read_whole(name: str, rows: int) -> None:
    if not (SHARED_DATA / name).exists():
        pytest.skip(f"there is no {SHARED_DATA / name}")
    epochs = FileEpochs(CriteoSource(SHARED_DATA / name), 1000)
    assert len(as_rows(epochs.batches(ORDER, Worker()))) == rows
    assert len(epochs.held_out()) == rows // 9
    assert epochs.rows_to_train() == pytest.approx(rows, rel=0.05)


@given(ids=st.lists(st.integers(-(2**56), 2**56 - 1), min_size=1, max_size=5, unique=True))
def test_no_two_features_share_a_key(ids: list[int]) -> None:
    keys = feature_keys(np.repeat(np.array(ids, np.int64)[:, None], 26, axis=1))
    assert len(np.unique(keys)) == keys.size


def test_keys_of_ids_that_end_alike_are_spread_over_shards() -> None:
    ids = np.arange(4000, dtype=np.int64)[:, None] * 64 + np.zeros(26, np.int64)
    shares = np.bincount(feature_keys(ids).reshape(-1) % 4, minlength=4) / ids.size
    np.testing.assert_allclose(shares, 0.25, atol=0.01)
