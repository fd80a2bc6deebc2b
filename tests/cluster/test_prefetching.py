"""Rows of the next batches are requested ahead, and are the same, whatever the loop does."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exports import assert_same
from numpy.typing import NDArray
from row_connection import DIM, ServedVariables, variable_here

import embstore as es
from embstore.cluster.rows.pushes import PushRules
from embstore.errors import InvalidArgumentError

pytestmark = pytest.mark.timeout(60)

STEPS = 12

Ids = NDArray[np.int64]


@pytest.fixture(params=[1, 2])
def served(request: pytest.FixtureRequest) -> Iterator[ServedVariables]:
    variable = ServedVariables(request.param, PushRules())
    yield variable
    variable.close()


def batches(steps: int = STEPS) -> Iterator[Ids]:
    for step in range(steps):
        random = np.random.default_rng(step)
        yield np.minimum(random.zipf(1.3, (10, 3)), 60).astype(np.int64) * 7919


def train_step(var: es.EmbeddingVariable, ids: Ids) -> None:
    """Looks up twice, like a model with two features, and trains by a function of the rows."""
    looked_up = [var.lookup(ids, train=True), var.lookup(ids[:, 0] + 1, train=True)]
    var.apply_gradients(
        np.r_[ids.ravel(), ids[:, 0] + 1],
        np.concatenate([np.tanh(rows.reshape(-1, DIM)) for rows in looked_up]),
    )


def of_step(ids: Ids) -> list[Ids]:
    return [ids, ids[:, 0] + 1]


def looked_up(variable: ServedVariables) -> int:
    return sum(int(shard.stats()["hits"] + shard.stats()["misses"]) for shard in variable.local)


@pytest.mark.parametrize("depth", [1, 3])
def test_rows_are_the_same_with_prefetching_and_without(
    served: ServedVariables, depth: int
) -> None:
    there, plain = served.of_worker(0), variable_here()
    for ids in es.prefetching(batches(), {there: of_step}, depth=depth):
        train_step(there, ids)
    for ids in batches():
        train_step(plain, ids)
    assert_same(there.export(), plain.export())


def test_the_next_batch_has_been_read_before_it_is_looked_up(served: ServedVariables) -> None:
    there = served.of_worker(0)
    coming = es.prefetching(batches(), {there: of_step})
    train_step(there, next(coming))
    following = next(coming)
    wanted = 2 * sum(ids.size for ids in of_step(following))  # of this batch and the previous one
    deadline = time.monotonic() + 20
    while looked_up(served) < wanted:
        assert time.monotonic() < deadline, "nothing was asked for"
        time.sleep(0.01)
    for ids in of_step(following):
        there.lookup(ids, train=True)
    assert looked_up(served) == wanted, "nothing is asked again"
    coming.close()  # type: ignore[attr-defined]


def test_batches_are_read_one_ahead_and_none_is_lost() -> None:
    read: list[int] = []

    def counted() -> Iterator[int]:
        for number in range(4):
            read.append(number)
            yield number

    seen = []
    with variable_here() as var:
        for number in es.prefetching(counted(), {var: lambda number: [number]}):
            seen.append((number, len(read)))
    assert seen == [(0, 2), (1, 3), (2, 4), (3, 4)]


def test_an_error_is_raised_at_the_step_that_it_belongs_to(served: ServedVariables) -> None:
    there = served.of_worker(0)

    def failing() -> Iterator[Ids]:
        yield from batches(3)
        raise ZeroDivisionError

    coming = es.prefetching(failing(), {there: of_step}, depth=2)
    for _ in range(3):
        train_step(there, next(coming))
    with pytest.raises(ZeroDivisionError):
        next(coming)
    batches_of_floats: list[Any] = [np.arange(3), np.arange(3) / 2]
    coming = es.prefetching(batches_of_floats, {there: lambda ids: ids})
    there.lookup(next(coming), train=True)
    with pytest.raises(InvalidArgumentError, match="ids must be int64, got float64"):
        next(coming)


@pytest.mark.parametrize("how", ["left", "failed", "closed"])
def test_prefetched_rows_are_dropped_when_the_loop_ends_early(
    served: ServedVariables, how: str
) -> None:
    there = served.of_worker(0)
    coming = es.prefetching(batches(), {there: of_step})
    for ids in coming:
        train_step(there, ids)
        break
    assert there.internals.prefetched._batches
    if how == "left":
        del coming
    elif how == "closed":
        coming.close()  # type: ignore[attr-defined]
    else:
        with pytest.raises(ZeroDivisionError):
            coming.throw(ZeroDivisionError)  # type: ignore[attr-defined]
    assert not there.internals.prefetched._batches
    there.apply_gradients([1], np.ones((1, DIM), np.float32))
    there.close()


def test_a_batch_without_ids_trains_nothing_and_costs_nothing(served: ServedVariables) -> None:
    there, plain = served.of_worker(0), variable_here()
    every_other = {there: lambda step: [] if step % 2 else [np.arange(step, step + 4)]}
    for step in es.prefetching(range(STEPS), every_other):
        for var in [] if step % 2 else [there, plain]:
            ids = np.arange(step, step + 4)
            var.apply_gradients(ids, np.tanh(var.lookup(ids, train=True)))
    assert_same(there.export(), plain.export())
    assert not there.internals.prefetched._batches


def test_rows_are_the_same_where_another_thread_reads_ahead(served: ServedVariables) -> None:
    """That thread requests rows in the middle of steps, and while gradients are applied."""
    there, plain = served.of_worker(0), variable_here()
    ready: queue.Queue[Ids | None] = queue.Queue(maxsize=2)

    def read() -> None:
        for ids in batches(60):
            there.prefetch(*of_step(ids))
            ready.put(ids)
        ready.put(None)

    reader = threading.Thread(target=read)
    reader.start()
    while (ids := ready.get()) is not None:
        train_step(there, ids)
        train_step(plain, ids)
    reader.join()
    assert_same(there.export(), plain.export())


def test_look_ups_that_are_left_out_of_a_step_do_not_hold_up_those_that_follow() -> None:
    variable = ServedVariables(1, PushRules())
    there = variable.of_worker(0)
    for ids in es.prefetching(batches(), {there: of_step}):
        there.lookup(ids, train=True)
        there.apply_gradients(ids, np.ones((*ids.shape, DIM), np.float32))
        (coming,) = there.internals.prefetched._batches or [None]
        assert coming is None or coming.after == there.internals.prefetched._pushes
    variable.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"depth": 0}, "depth must be at least 1"),
        ({"depth": 16}, "depth must be at most 15"),
        ({"ids_of": {"items": len}}, "ids_of must have embstore.EmbeddingVariables for keys"),
    ],
)
def test_bad_arguments_are_named_at_once(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        es.prefetching([], **{"ids_of": {}, **arguments})


def test_values_of_ids_of_must_be_functions() -> None:
    with (
        variable_here() as var,
        pytest.raises(InvalidArgumentError, match=r"ids_of\[var\] must be a function of a batch"),
    ):
        es.prefetching([], {var: 3})  # type: ignore[arg-type]


def test_rows_that_a_save_evicts_are_looked_up_again(tmp_path: Path) -> None:
    with contextlib.closing(ServedVariables(2, PushRules(), evict=es.GlobalStepEvict(5))) as served:
        there = served.of_worker(0)
        ids = np.arange(6)
        initial = there.lookup(ids, train=True)
        there.apply_gradients(ids, np.ones((6, DIM), np.float32), global_step=0)
        there.prefetch(ids)
        es.save(tmp_path, [there], global_step=100)
        assert there.total_count()[0] == 0
        np.testing.assert_array_equal(there.lookup(ids, train=True), initial)


@pytest.mark.parametrize("shards", [1, 2])
def test_a_pause_longer_than_the_servers_wait_for_a_push_changes_no_look_up(shards: int) -> None:
    steps = [np.arange(step, step + 20) for step in range(6)]

    def trained(items: es.EmbeddingVariable, depth: int) -> list[NDArray[np.float32]]:
        found = []
        for step, ids in enumerate(es.prefetching(steps, {items: lambda ids: ids}, depth=depth)):
            found.append(items.lookup(ids, train=True))
            if step == 1:
                time.sleep(0.6)
            items.apply_gradients(ids, found[-1])
        return found

    with (
        contextlib.closing(ServedVariables(shards, PushRules(patience_s=0.2))) as paused,
        contextlib.closing(ServedVariables(shards, PushRules())) as other,
    ):
        found, wanted = trained(paused.of_worker(0), 2), trained(other.of_worker(0), 1)
    np.testing.assert_array_equal(found, wanted)
