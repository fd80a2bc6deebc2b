"""Cases that hold on every storage type with HBM, with ids on the host and on the device, and with
partitions."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_variables import files_of
from engine_storage import GPU, MakeVariable, Stack, StorageOf
from exports import assert_same
from numpy.typing import NDArray
from plain_partition import partitions_of

import embstore as es
from embstore.errors import InvalidArgumentError
from embstore.gpu.batches import BatchConditions
from embstore.gpu.steps import ApplyStep, apply_together
from embstore.options import TIER_KINDS, TierKind

HBM_TYPES = [kind for kind, tiers in TIER_KINDS.items() if TierKind.HBM in tiers]
DIM = 3
ROW_BYTES = 32  # weights and an accumulator
UPPER_ROWS = 8  # of each tier but the last
LAST_ROWS = 40


@dataclass(frozen=True)
class Caller:
    """Makes variables of one storage type, and calls them with ids on the host or on the device."""

    stack: Stack
    on_device: bool
    partitions: int
    storage_of: StorageOf
    make_variable: MakeVariable
    folder: Path

    @property
    def capacity(self) -> int:
        """The number of rows that a partition can hold."""
        return (self.stack.tiers - 1) * UPPER_ROWS + LAST_ROWS

    def of_one_partition(self, count: int) -> NDArray[np.int64]:
        """Returns `count` keys of the same partition."""
        keys = np.arange(20 * count * self.partitions)
        own = np.flatnonzero(partitions_of(keys, self.partitions) == self.partitions - 1)
        return keys.take(own[:count])

    def evenly(self, keys: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        """Returns, in their order, the first `count` of `keys` in each partition."""
        where = partitions_of(keys, self.partitions)
        own = [np.flatnonzero(where == number)[:count] for number in range(self.partitions)]
        assert {len(positions) for positions in own} == {count}
        return keys.take(np.sort(np.concatenate(own)))

    def make(
        self, strategy: es.CacheStrategy = es.CacheStrategy.LFU, *, times: int = 1, **of: Any
    ) -> es.EmbeddingVariable:
        """Makes a variable whose tiers are `times` as large as usual."""
        storage = self.storage_of(
            self.stack,
            times * self.capacity * ROW_BYTES,
            upper_bytes=times * UPPER_ROWS * ROW_BYTES,
            cache_strategy=strategy,
        )
        return self.make_variable(storage=storage, name="var", partition_num=self.partitions, **of)

    def ids(self, ids: Any) -> Any:
        ids = np.asarray(ids, np.int64)
        return es.DeviceArray(ids, device=GPU) if self.on_device else ids

    def lookup(
        self, var: es.EmbeddingVariable, ids: Any, *, train: bool = True, count: bool = True
    ) -> NDArray[np.float32]:
        rows: Any = var.lookup(self.ids(ids), train=train, count=count)
        found: NDArray[np.float32] = rows.numpy() if self.on_device else rows
        return found

    def apply(self, var: es.EmbeddingVariable, ids: Any, grads: Any = 1.0) -> None:
        grads = np.broadcast_to(np.asarray(grads, np.float32), (*np.shape(ids), DIM)).copy()
        if self.on_device:
            grads = es.DeviceArray(grads, device=GPU)
        var.apply_gradients(self.ids(ids), grads)
        var.synchronize()


def tiers(var: es.EmbeddingVariable, ids: Any) -> list[int]:
    var.drain()
    found: list[int] = var.lookup_tier(np.asarray(ids, np.int64)).tolist()
    return found


def reads_below(var: es.EmbeddingVariable, call: Callable[[], object]) -> int:
    """Returns how many rows a call, and the moves that it causes, read from the tiers below HBM."""

    def count() -> int:
        var.drain()
        stats = var.stats()["tiers"]
        tiers = len(stats) // var.partition_num
        return sum(
            told["accesses"]
            for number, tier in enumerate(stats)
            if number % tiers > 0
            for told in tier["accesses"]
            if told["access"] in (es.Access.LOAD, es.Access.FILE_READ)
        )

    before = count()
    call()
    return count() - before


def a_key_that_is_missed_is_read_below_once_however_often_it_occurs(caller: Caller) -> None:
    if caller.stack.tiers == 1:
        return
    var = caller.make()
    *keys, once, often, absent = caller.of_one_partition(UPPER_ROWS * (caller.stack.tiers - 1) + 3)
    for level in range(caller.stack.tiers - 1):
        own = keys[UPPER_ROWS * level :][:UPPER_ROWS]
        caller.apply(var, np.repeat(own, 20 * (caller.stack.tiers - level)))
    caller.apply(var, [once, often])
    last = caller.stack.tiers - 1
    assert tiers(var, [once, often]) == [last, last]
    for how in ({"train": True}, {"train": False}, {"train": False, "count": False}):
        reads = [
            reads_below(var, functools.partial(caller.lookup, var, batch, **how))
            for batch in ([once, absent], [often, absent, often, absent, often, keys[0], often])
        ]
        assert tiers(var, [once, often]) == [last, last]
        assert reads[0] == reads[1], how
    trained = caller.lookup(var, [often, absent])
    served = caller.lookup(var, [often, absent] * 100, train=False)
    np.testing.assert_array_equal(served, np.tile(trained, (100, 1)))
    assert tiers(var, [once, often, keys[0]]) == [last, 0, 0]  # each was counted


def the_last_look_up_of_a_key_in_a_batch_ranks_it(caller: Caller) -> None:
    if caller.stack.tiers == 1:
        return
    var = caller.make(es.CacheStrategy.LRU)
    keys = caller.of_one_partition(2 * UPPER_ROWS + 1)
    twice, once = keys[:2]
    for key in keys[: UPPER_ROWS + 2]:
        caller.apply(var, [key])
    assert 0 not in tiers(var, [twice, once])
    caller.lookup(var, [twice, once, twice], train=False)
    assert tiers(var, [twice, once]) == [0, 0]
    for key in keys[UPPER_ROWS + 2 :]:
        caller.apply(var, [key])
    assert [min(tier, 1) for tier in tiers(var, [twice, once])] == [0, 1]


def apply_under(
    caller: Caller, var: es.EmbeddingVariable, ids: Any, grads: Any, kept: Any, refused: int
) -> None:
    conditions = BatchConditions(caller.ids(kept), caller.ids([refused]), ("one", "two"))
    on_device = es.DeviceArray(grads, device=GPU)
    apply_together([ApplyStep.of(var, caller.ids(ids), on_device, conditions)], None)


def ids_that_the_gpu_leaves_out_are_not_trained(caller: Caller) -> None:
    if not caller.on_device:
        return
    plain = caller.make_variable(name="plain", optimizer=es.optimizers.Adam(0.1))
    var = caller.make(optimizer=es.optimizers.Adam(0.1), times=2)  # has two slots
    random = np.random.default_rng(3)
    for step in range(6):
        ids = random.integers(0, 40, 30)
        grads = random.standard_normal((30, DIM)).astype(np.float32)
        kept = random.integers(0, 3, 30) * (step != 4)  # in one step none is kept
        apply_under(caller, var, ids, grads, kept, refused=0)
        plain.apply_gradients(ids[kept != 0], grads[kept != 0])
        var.drain()
        assert_same(var.export(), plain.export())
        apply_under(caller, var, ids, grads, kept, refused=2)
        with pytest.raises(InvalidArgumentError, match="two"):
            var.synchronize()
        plain.internals.count_skipped_apply()
        assert_same(var.export(), plain.export())


def ids_of_a_bag_share_its_gradient(caller: Caller) -> None:
    if not caller.on_device:
        return
    plain = caller.make_variable(name="plain", optimizer=es.optimizers.Adam(0.1))
    var = caller.make(optimizer=es.optimizers.Adam(0.1), times=2)
    random = np.random.default_rng(5)

    def apply(ids: Any, grads: Any, bags: Any, kept: Any) -> None:
        conditions = BatchConditions(caller.ids(kept))
        on_device = es.DeviceArray(grads, device=GPU)
        step = ApplyStep.of(var, caller.ids(ids), on_device, conditions, caller.ids(bags))
        apply_together([step], None)
        var.synchronize()

    for bag_count, id_count in ((1, 30), (7, 30), (30, 30), (50, 30), (3, 0)):
        ids = random.integers(0, 40, id_count)
        bags = np.sort(random.integers(0, bag_count, id_count))
        grads = random.standard_normal((bag_count, DIM)).astype(np.float32)
        grads[np.setdiff1d(np.arange(bag_count), bags)] = np.nan  # trains no row
        kept = random.integers(0, 3, id_count)
        apply(ids, grads, bags, kept)
        plain.apply_gradients(ids[kept != 0], grads[bags[kept != 0]])
        var.drain()
        assert_same(var.export(), plain.export())
    grads = np.ones((3, DIM), np.float32)
    grads[1, 2] = np.inf
    with pytest.raises(InvalidArgumentError, match=r"grads must be finite, .* ids\[3\]"):
        apply([1, 2, 3, 4, 5], grads, [0, 0, 1, 1, 2], [1, 1, 0, 1, 1])
    assert_same(var.export(), plain.export())
    with pytest.raises(InvalidArgumentError, match=r"bags must be int64 of shape \(2,\)"):
        apply([1, 2], grads, [0], [1, 1])


def batches_that_the_gpu_leaves_out_count_and_change_nothing(caller: Caller) -> None:
    if not caller.on_device:
        return
    plain = caller.make_variable(name="plain", optimizer=es.optimizers.Adam(0.1))
    var = caller.make(optimizer=es.optimizers.Adam(0.1), times=2)
    random = np.random.default_rng(4)
    on_gpu = []
    for step in range(8):
        ids = random.integers(0, 40, 30)
        grads = random.standard_normal((30, DIM)).astype(np.float32)
        on_gpu.append(
            ApplyStep.of(
                var,
                caller.ids(ids),
                es.DeviceArray(grads, device=GPU),
                BatchConditions(skip=caller.ids([7 if step in (0, 3, 4) else 0])),
            )
        )
        apply_together(on_gpu[-1:], None)
        if step in (0, 3, 4):
            plain.internals.count_skipped_apply()
        else:
            plain.apply_gradients(ids, grads)
        if step == 5:
            var.learning_rate = plain.learning_rate = 0.5  # for later batches only
    var.drain()
    assert_same(var.export(), plain.export())
    assert var.internals.apply_count() == plain.internals.apply_count() == 8


def a_batch_with_a_gradient_that_is_not_finite_changes_nothing(caller: Caller) -> None:
    var = caller.make()
    keys = np.arange(UPPER_ROWS + 2)
    caller.apply(var, keys)
    var.drain()
    before = var.export()
    for at, value in ((0, np.nan), (keys.size - 1, np.inf), (keys.size, -np.inf)):
        grads = np.ones((keys.size + 1, DIM), np.float32)
        grads[at, 1] = value
        with pytest.raises(InvalidArgumentError, match=rf"grads must be finite, .* ids\[{at}\]"):
            caller.apply(var, np.r_[keys, -1], grads)
        assert_same(var.export(), before)
    caller.apply(var, keys)
    assert var.get_frequency(keys).tolist() == [2] * keys.size


def an_empty_batch_changes_nothing_but_the_count_of_applies(caller: Caller) -> None:
    var = caller.make()
    for batches in (1, 2):
        for shape in ((0,), (0, 4)):
            none = np.empty(shape, np.int64)
            assert caller.lookup(var, none).shape == (*shape, DIM)
            assert caller.lookup(var, none, train=False).shape == (*shape, DIM)
            var.prefetch(caller.ids(none))
            caller.apply(var, none)
        before = var.stats()
        caller.apply(var, [5])
        assert (before["hits"], before["misses"]) == (0, 0)
        assert var.get_version([5]).tolist() == [3 * batches - 1]
        assert var.get_frequency([5]).tolist() == [batches]


def an_empty_table_is_exported_and_restored(caller: Caller) -> None:
    var, other = caller.make(), caller.make()
    empty = var.export()
    assert {name: column.shape for name, column in empty.items()} == {
        "keys": (0,),
        "values": (0, DIM),
        "freqs": (0,),
        "versions": (0,),
        "accumulator": (0, DIM),
    }
    es.save(caller.folder / "empty", [var], 1)
    caller.apply(other, [1, 2])
    es.restore(caller.folder / "empty", [other])
    assert_same(other.export(), empty)
    caller.apply(other, [1])
    assert other.total_count() == (1, DIM)


def a_row_that_is_touched_again_is_in_the_next_increment(caller: Caller) -> None:
    var, other = caller.make(), caller.make()
    keys = np.arange(caller.capacity - 1)
    caller.apply(var, keys)
    var.drain()
    saves = [caller.folder / name for name in ("full", "first", "second")]
    es.save(saves[0], [var], 1)
    # Keys in HBM, in the tier below if there is one, and in each partition.
    touched = np.unique(np.r_[keys[0], keys[-1], caller.evenly(keys, 1)])
    for save in saves[1:]:
        caller.apply(var, touched)
        caller.apply(var, touched[:1])
        caller.lookup(var, keys[4:8], train=False)
        wanted = var.export()
        es.save_incremental(save, [var], 2)
        es.restore(saves[0], [other], incremental=saves[1 : saves.index(save) + 1])
        assert_same(other.export(), wanted)
    full, first, second = (
        sum(file.stat().st_size for file in files_of(save) if file.suffix == ".rows")
        for save in saves
    )
    row = 40 + 2 * 4 * DIM  # key, counters, weights and accumulator
    initial_rows = 32 + 4096 * 4 * DIM  # only the full save has them
    rows_of_full = (keys.size - len(touched)) * row
    assert (full - first, first - second) == (initial_rows + rows_of_full, 0)


CASES = [
    the_last_look_up_of_a_key_in_a_batch_ranks_it,
    a_key_that_is_missed_is_read_below_once_however_often_it_occurs,
    ids_that_the_gpu_leaves_out_are_not_trained,
    ids_of_a_bag_share_its_gradient,
    batches_that_the_gpu_leaves_out_count_and_change_nothing,
    a_batch_with_a_gradient_that_is_not_finite_changes_nothing,
    an_empty_batch_changes_nothing_but_the_count_of_applies,
    an_empty_table_is_exported_and_restored,
    a_row_that_is_touched_again_is_in_the_next_increment,
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_on_every_storage_type_with_hbm(
    case: Callable[[Caller], None],
    make_variable: MakeVariable,
    storage_of: StorageOf,
    place: Path,
) -> None:
    skipped = None
    for kind, on_device, partitions in itertools.product(HBM_TYPES, (False, True), (1, 3)):
        where = f"{kind.name}, ids on the {'device' if on_device else 'host'}, {partitions} parts"
        (place / where).mkdir()
        made: list[es.EmbeddingVariable] = []

        def make(made: list[es.EmbeddingVariable] = made, **of: Any) -> es.EmbeddingVariable:
            made.append(make_variable(**of))
            return made[-1]

        caller = Caller(Stack(kind), on_device, partitions, storage_of, make, place / where)
        try:
            case(caller)
            for variable in made:
                variable.close()  # else the emulated GPU chooses among ever more streams
        except pytest.skip.Exception as skip:
            skipped = skip
        except BaseException as error:
            error.args = (f"{where}: {error}",)
            raise
    if skipped is not None:
        raise skipped
