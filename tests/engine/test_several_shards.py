"""A call on several variables' shards gives each of them what a call of its own would."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from engine_storage import variable_with_options
from numpy.typing import NDArray

import embstore as es
from embstore.errors import ClosedError, InvalidArgumentError, StoreFullError
from embstore.table.several_shards import (
    GradientPart,
    Prepared,
    commit_together,
    ids_per_part,
    look_up_together,
    prepare_together,
)
from embstore.table.shard import LocalShard

DIMS = [3, 16, 1]

Variables = list[es.EmbeddingVariable]


def adagrad(name: str, dim: int, size_bytes: int | None = None) -> es.EmbeddingVariable:
    return variable_with_options(
        name,
        dim,
        es.StorageOption(storage_size=None if size_bytes is None else [size_bytes]),
        initializer=es.initializers.RandomUniform(-1.0, 1.0, seed=3),
        optimizer=es.optimizers.Adagrad(0.1),
    )


@pytest.fixture
def variables() -> Iterator[Variables]:
    several = [adagrad(f"var{dim}", dim) for dim in DIMS]
    yield several
    for variable in several:
        variable.close()


def shards(variables: Variables) -> list[LocalShard]:
    found = [shard for variable in variables for shard in variable._shards]
    return [shard for shard in found if isinstance(shard, LocalShard)]


def rows(count: int, dim: int, seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32)


def part(ids: list[int], dim: int, seed: int, occurrences: list[int] | None = None) -> GradientPart:
    counted = None if occurrences is None else np.array(occurrences, np.uint32)
    keys = np.array(ids, np.int64)
    return GradientPart(
        keys, rows(keys.size, dim, seed), counted, sum(occurrences or [1] * len(ids))
    )


@pytest.mark.parametrize("train", [True, False])
def test_look_ups_together_give_the_rows_of_each(variables: Variables, train: bool) -> None:
    for variable in variables:
        variable.apply_gradients([1, 2, 3], rows(3, variable.dim, 1))
    ids = np.array([1, 7, 2, 2, 3, -5])
    begins = [0, 2, 2, 6]  # no id for the second
    floats = np.empty(2 * DIMS[0] + 4 * DIMS[2], np.float32)
    assert look_up_together(shards(variables), ids, begins, floats, train, None) == [None] * 3
    first, last = variables[0].lookup(ids[:2]), variables[2].lookup(ids[2:])
    np.testing.assert_array_equal(floats, np.concatenate([first.reshape(-1), last.reshape(-1)]))


def test_a_shard_that_is_closed_has_an_error_and_the_others_their_rows(
    variables: Variables,
) -> None:
    several = shards(variables)
    variables[1].close()
    floats = np.zeros(sum(DIMS), np.float32)
    errors = look_up_together(several, np.array([4, 4, 4]), [0, 1, 2, 3], floats, True, None)
    assert [type(error) for error in errors] == [type(None), ClosedError, type(None)]
    np.testing.assert_array_equal(floats[:3], variables[0].lookup([4])[0])
    np.testing.assert_array_equal(floats[-1:], variables[2].lookup([4])[0])


@pytest.mark.parametrize(
    ("begins", "floats"),
    [([0, 1, 2], 20), ([0, 2, 1, 3], 20), ([0, 1, 2, 3], 19), ([1, 1, 2, 3], 20)],
)
def test_rows_that_do_not_fit_are_refused(
    variables: Variables, begins: list[int], floats: int
) -> None:
    with pytest.raises(InvalidArgumentError, match="floats don't fit"):
        look_up_together(
            shards(variables), np.arange(3), begins, np.empty(floats, np.float32), True, None
        )


def test_parts_are_prepared_as_one_batch_and_committed(variables: Variables) -> None:
    several = shards(variables)
    scale = 0.5
    parts = [
        [part([1, 2, 3], dim, 5, [2, 1, 1]), part([3, 1], dim, 6), part([], dim, 7)] for dim in DIMS
    ]
    made_of_each = prepare_together(list(zip(several, parts, strict=True)), scale)
    prepared = [each for each in made_of_each if isinstance(each, Prepared)]
    assert len(prepared) == len(several)
    assert [variable.total_count()[0] for variable in variables] == [0] * 3
    commit_together(prepared, 9)
    for variable, (first, second, _) in zip(variables, parts, strict=True):
        alone = adagrad(f"alone{variable.dim}", variable.dim)
        together = np.concatenate([first.grads, second.grads]) * np.float32(scale)
        alone.apply_gradients(np.concatenate([first.ids, second.ids]), together, 9)
        got, wanted = variable.export(), alone.export()
        for name in ("keys", "values", "versions", "accumulator"):
            np.testing.assert_array_equal(got[name], wanted[name], err_msg=name)
        assert got["freqs"].tolist() == [3, 1, 2]


def test_a_single_part_is_taken_unscaled(variables: Variables) -> None:
    several = shards(variables)[:1]
    only = part([1, 2], DIMS[0], 5)
    (prepared,) = prepare_together([(several[0], [only])], 0.5)
    assert isinstance(prepared, Prepared)
    commit_together([prepared], None)
    alone = adagrad("alone", DIMS[0])
    alone.apply_gradients(only.ids, only.grads)
    np.testing.assert_array_equal(variables[0].export()["values"], alone.export()["values"])


@pytest.mark.parametrize("parts_each", [1, 2])
def test_a_shard_that_is_full_has_an_error_and_the_others_are_prepared(
    variables: Variables, parts_each: int
) -> None:
    full = adagrad("full", 3, 64)
    several = shards([variables[0], full, variables[2]])
    batches = [
        (shard, [part(list(range(50)), dim, seed) for seed in range(parts_each)])
        for shard, dim in zip(several, (3, 3, 1), strict=True)
    ]
    first, error, last = prepare_together(batches, 1.0)
    assert isinstance(error, StoreFullError)
    assert isinstance(first, Prepared)
    assert isinstance(last, Prepared)
    first.abort()
    commit_together([last], None)
    assert [v.total_count()[0] for v in (variables[0], full, variables[2])] == [0, 0, 50]


def test_parts_stand_for_as_many_ids_as_their_occurrences_say() -> None:
    begins = [0, 2, 2, 5]
    assert ids_per_part(begins, None) == [2, 0, 3]
    assert ids_per_part(begins, np.array([4, 1, 2**32 - 1, 1, 1], np.uint32)) == [5, 0, 2**32 + 1]
