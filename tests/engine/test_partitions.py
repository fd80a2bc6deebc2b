"""A variable over several partitions gives the same results as over one."""

from __future__ import annotations

import concurrent.futures
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_storage import MakeVariable, StorageOf
from exports import assert_same
from plain_partition import keys_of_each, partitions_of

import embstore as es
from embstore import variable
from embstore.errors import ClosedError, StoreFullError, UnsupportedError
from embstore.table.several_shards import apply_to_all
from embstore.table.shard import LocalShard


def test_an_update_that_is_interrupted_leaves_nothing_prepared(
    make_variable: MakeVariable, monkeypatch: pytest.MonkeyPatch
) -> None:
    var = make_variable(partition_num=3)
    ids, grads = np.arange(30), np.ones((30, 3), np.float32)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("embstore.table.several_shards._core.commit_together", interrupted)
        with pytest.raises(KeyboardInterrupt):
            var.apply_gradients(ids, grads)
    assert var.total_count()[0] == 0
    with concurrent.futures.ThreadPoolExecutor(1) as thread:  # a prepared update would block others
        thread.submit(var.apply_gradients, ids, grads).result(20)
    assert var.total_count()[0] == 30


def test_one_full_partition_refuses_the_batch_for_all(
    make_variable: MakeVariable, storage_of: StorageOf
) -> None:
    var = make_variable(storage=storage_of(es.StorageType.DRAM, 4 * 32), partition_num=2)
    keys = keys_of_each(2, 5)
    where = partitions_of(keys, 2)
    full, other = keys[where == 0], keys[where == 1]
    var.apply_gradients(full[:3], np.ones((3, 3), np.float32))
    before = var.export()
    grads = np.ones((5, 3), np.float32)
    with pytest.raises(StoreFullError, match="storage_size"):
        var.apply_gradients([other[0], other[1], full[0], full[3], full[4]], grads)
    assert_same(var.export(), before)
    var.apply_gradients([other[0], other[1], full[0], full[3], full[3]], grads)
    assert var.total_count() == (6, 3)
    assert var.get_version(full[3:4]) == [1]


def test_a_closed_variable_refuses_all_of_its_partitions(make_variable: MakeVariable) -> None:
    var = make_variable(partition_num=2)
    var.close()
    with pytest.raises(ClosedError):
        var.lookup([1])
    with pytest.raises(ClosedError):
        var.apply_gradients([1], np.ones((1, 3), np.float32))


@pytest.mark.parametrize("interrupted", ["an update", "a save"])
def test_a_signal_handler_that_would_wait_for_its_own_thread_is_refused(
    make_variable: MakeVariable,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    interrupted: str,
) -> None:
    var = make_variable(name="items", partition_num=2)
    ids, grads = np.arange(20), np.ones((20, 3), np.float32)
    var.apply_gradients(ids, grads)
    refused: list[Callable[[], object]] = []
    tries: list[Callable[[], object]] = [
        lambda: es.save(tmp_path / "handler", [var]),
        lambda: var.remove([1]),
    ]
    if interrupted == "an update":
        tries += [var.export, lambda: var.apply_gradients(ids, grads)]

    def handler(*_: object) -> None:
        for attempt in tries:
            with pytest.raises(UnsupportedError, match=r"items: .*handler only set a flag"):
                attempt()
            refused.append(attempt)

    def interrupt(own: Callable[..., Any]) -> Callable[..., Any]:
        def then_goes_on(*arguments: Any, **options: Any) -> Any:
            signal.raise_signal(signal.SIGUSR1)
            return own(*arguments, **options)

        return then_goes_on

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with monkeypatch.context() as patch:
            if interrupted == "an update":
                patch.setattr(variable, "apply_to_all", interrupt(apply_to_all))
            else:
                patch.setattr(LocalShard, "prepare_save", interrupt(LocalShard.prepare_save))
            var.apply_gradients(ids, grads)
            es.save(tmp_path / "saved", [var])
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(refused) == 4
    # The interrupted call succeeded, and no call of the handler did anything.
    np.testing.assert_array_equal(var.get_frequency(ids), np.full(20, 2))
    other = make_variable(name="items", partition_num=2)
    es.restore(tmp_path / "saved", [other])
    np.testing.assert_array_equal(other.lookup(ids), var.lookup(ids))
    assert {path.name for path in (tmp_path / "handler").rglob("*")} <= {".lock"}
