"""Saves while other threads train: each holds the variable between two of its batches."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from engine_storage import variable_with_options
from exports import assert_same
from numpy.typing import NDArray
from reporting_lock import ReportingLock

import embstore as es
from embstore import _core
from embstore.table.shard import LocalSave, LocalShard, SavedShard, SaveRequest

KEYS = 3000
DIM = 4


def variable(
    storage_type: es.StorageType,
    path: Path,
    partition_num: int = 1,
    *,
    dim: int = DIM,
    filter_freq: int | None = None,
    evict_option: es.GlobalStepEvict | es.L2WeightEvict | None = None,
    durability: str | None = None,
) -> es.EmbeddingVariable:
    path.mkdir(exist_ok=True)
    rows = {0: (100_000,), 1: (400, 100_000), 2: (400, 600, 100_000)}[storage_type.name.count("_")]
    sizes = [2 * dim * 4 * count // partition_num for count in rows]
    if durability is not None:
        sizes[1] = 16 << 20  # includes rows that the pool's checkpoints keep
    return variable_with_options(
        "var",
        dim,
        es.StorageOption(
            storage_type,
            None if storage_type is es.StorageType.DRAM else str(path),
            sizes,
            durability=durability,
        ),
        optimizer=es.optimizers.Adagrad(learning_rate=0.1),
        partition_num=partition_num,
        init=es.InitializerOption(es.initializers.TruncatedNormal(seed=3), default_value_dim=64),
        filter=None if filter_freq is None else es.CounterFilter(filter_freq),
        evict=evict_option,
    )


class Batches:
    """Batches of one seed: ids, and gradients that no two batches have in common.

    The range of cold ids moves on, so there are always new keys, and keys that come no more.
    """

    def __init__(self, seed: int, dim: int = DIM, keys: int = KEYS, pace: int = 5) -> None:
        self._seed, self._dim, self._keys, self._pace = seed, dim, keys, pace
        self._drawn: dict[int, tuple[NDArray[np.int64], NDArray[np.float32]]] = {}

    def __call__(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Returns a batch. Each is asked for twice: for the training beside saves, and for the
        plain one."""
        if number in self._drawn:
            return self._drawn.pop(number)
        self._drawn[number] = drawn = self._draw(number)
        return drawn

    def _draw(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        rng = np.random.default_rng([self._seed, number])
        size = int(rng.integers(1, 400))
        hot = -1 - rng.zipf(1.3, size) % 50
        first = number * self._pace
        cold = rng.integers(first, first + self._keys, size)
        ids = np.where(rng.random(size) < 0.3, hot, cold).astype(np.int64)
        return ids, rng.random((size, self._dim), np.float32) - np.float32(0.5)


def applied(var: es.EmbeddingVariable) -> int:
    return var._shards[0].apply_count()


class Trainer:
    """Trains batches in another thread, one after the other, and looks rows up as it goes.

    At least one batch is trained before the body of its `with` block begins. While a save runs
    there, `around_writes` batches are trained before its rows are written, and as many after.
    """

    def __init__(self, var: es.EmbeddingVariable, batches: Batches, around_writes: int = 3) -> None:
        self._var, self._batches, self._around_writes = var, batches, around_writes
        self.number = 0  # batches that were trained
        self.overlapped = 0  # batches that were trained within scopes
        self._error: BaseException | None = None

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                ids, gradients = self._batches(self.number)
                self._var.lookup(ids[::2])
                self._var.lookup(ids, train=True)
                self._var.apply_gradients(ids, gradients)
                with self._trained:
                    self.number += 1
                    self._trained.notify_all()
        except BaseException as error:
            with self._trained:
                self._error = error
                self._trained.notify_all()

    def _train_more(self, batches: int) -> None:
        with self._trained:
            last = self.number + batches
            self._trained.wait_for(lambda: self.number >= last or self._error is not None)

    def __enter__(self) -> Trainer:
        self._stop, self._trained = threading.Event(), threading.Condition()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._train_more(1)
        self._before = self.number
        write = LocalSave.write

        def write_beside_batches(save: LocalSave, skip_damaged: bool) -> SavedShard:
            self._train_more(self._around_writes)
            saved = write(save, skip_damaged)
            self._train_more(self._around_writes)
            return saved

        self._patch = patch.object(LocalSave, "write", write_beside_batches)
        self._patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.stop()
        self.overlapped += self.number - self._before
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error


class Plain:
    """A variable that trains the same batches alone, as far as the trainer got."""

    def __init__(self, var: es.EmbeddingVariable, batches: Batches) -> None:
        self.var, self._batches, self._trained = var, batches, 0

    def train_until(self, number: int) -> None:
        assert number >= self._trained
        for n in range(self._trained, number):
            self.var.apply_gradients(*self._batches(n))
        self._trained = number


def check_chains(
    place: Path,
    var: es.EmbeddingVariable,
    plain_var: es.EmbeddingVariable,
    batches: Batches,
    saves: int = 12,
    around_writes: int = 3,
) -> None:
    """Checks after every save that a variable which trains the same batches has the restored rows.

    place: the folder of the saves. It lies in memory: the trainer would go on training while saves
    wait for a medium.
    """
    plain, trainer = Plain(plain_var, batches), Trainer(var, batches, around_writes)
    chain: list[Path] = []
    n = 0
    # On a busy computer a save may have no time for batches beside it: then more saves are made.
    while n < saves or (trainer.overlapped <= saves and n < 4 * saves):
        path = place / f"save-{n}"
        with trainer:
            step = trainer.number
            if n % 4 == 0:
                es.save(path, [var], step)
                chain = [path]
            else:
                es.save_incremental(path, [var], step)
                chain.append(path)
        with variable(es.StorageType.DRAM, place, dim=plain_var.dim) as restored:
            es.restore(chain[0], [restored], incremental=chain[1:])
            plain.train_until(applied(restored))
            if plain_var.ev_option.evict_option is not None:
                es.save(place / "plain", [plain_var], step)  # evicts rows
            assert_same(restored.export(), plain_var.export())
        plain.train_until(trainer.number)
        assert_same(var.export(), plain_var.export())
        n += 1
    assert trainer.overlapped > saves


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("storage_type", "partition_num"),
    [
        (es.StorageType.DRAM, 1),
        (es.StorageType.DRAM, 3),
        (es.StorageType.DRAM_SSDHASH, 1),
        (es.StorageType.DRAM_SSDHASH, 3),
        (es.StorageType.DRAM_LEVELDB, 1),
        (es.StorageType.DRAM_PMEM, 2),
        (es.StorageType.DRAM_PMEM_SSDHASH, 2),
        (es.StorageType.HBM, 1),
        (es.StorageType.HBM_DRAM_SSDHASH, 2),
    ],
)
def test_each_save_of_a_chain_is_the_variable_between_two_batches(
    tmp_path: Path, place: Path, storage_type: es.StorageType, partition_num: int, seed: int
) -> None:
    with (
        variable(storage_type, tmp_path / "rows", partition_num) as var,
        variable(es.StorageType.DRAM, tmp_path) as plain,
    ):
        check_chains(place, var, plain, Batches(seed))


@pytest.mark.parametrize(
    "storage_type", [es.StorageType.DRAM_PMEM, es.StorageType.DRAM_PMEM_SSDHASH]
)
def test_each_save_beside_checkpoints_of_a_pool_is_the_variable_between_two_batches(
    tmp_path: Path, place: Path, storage_type: es.StorageType
) -> None:
    """The pool's checkpoints keep copies of rows too, of other moments than the saves."""
    done = threading.Event()

    def persist() -> None:
        for _ in range(100):
            es.persist([var], place / "checkpoints")
            if done.is_set():
                break

    with (
        variable(storage_type, tmp_path / "rows", 2, durability="checkpoint") as var,
        variable(es.StorageType.DRAM, tmp_path) as plain,
    ):
        persister = threading.Thread(target=persist)
        persister.start()
        try:
            check_chains(place, var, plain, Batches(5))
        finally:
            done.set()
            persister.join()


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("storage_type", "partition_num"),
    [
        (es.StorageType.DRAM, 1),
        pytest.param(es.StorageType.DRAM, 2, marks=pytest.mark.long),
        (es.StorageType.DRAM_SSDHASH, 2),
    ],
)
def test_a_save_is_right_if_more_rows_change_than_it_keeps_in_memory(
    tmp_path: Path, storage_type: es.StorageType, partition_num: int
) -> None:
    """Rows have 16 KiB: a save keeps at most 64 MiB of them in memory, and writes them from 32 MiB
    on.

    Updates wait for the save then, so it can't wait for batches; it waits for a medium meanwhile.
    """
    dim = 2048
    with (
        variable(storage_type, tmp_path / "rows", partition_num, dim=dim) as var,
        variable(es.StorageType.DRAM, tmp_path, dim=dim) as plain,
    ):
        check_chains(tmp_path, var, plain, Batches(7, dim, keys=6000), saves=4, around_writes=0)


@pytest.mark.parametrize(
    "rule", [es.GlobalStepEvict(3), es.L2WeightEvict(0.9)], ids=["steps", "weights"]
)
@pytest.mark.parametrize(
    "storage_type",
    [
        es.StorageType.DRAM,
        es.StorageType.DRAM_SSDHASH,
        es.StorageType.DRAM_PMEM,
        es.StorageType.HBM_DRAM,
    ],
)
def test_rows_are_evicted_between_two_batches(
    tmp_path: Path,
    place: Path,
    storage_type: es.StorageType,
    rule: es.GlobalStepEvict | es.L2WeightEvict,
) -> None:
    """Evicted rows are those of one moment, though others change and return beside the save."""
    with (
        variable(storage_type, tmp_path / "rows", 2, evict_option=rule) as var,
        variable(es.StorageType.DRAM, tmp_path, evict_option=rule) as plain,
    ):
        check_chains(place, var, plain, Batches(11, keys=800))


def test_waiting_keys_are_those_between_two_batches(tmp_path: Path, place: Path) -> None:
    batches = Batches(13)
    ids = np.arange(-60, 40_000)
    with (
        variable(es.StorageType.DRAM_SSDHASH, tmp_path / "rows", 2, filter_freq=4) as var,
        variable(es.StorageType.DRAM, tmp_path, filter_freq=4) as plain_var,
    ):
        plain, trainer = Plain(plain_var, batches), Trainer(var, batches)
        for _ in range(10):
            with trainer:
                es.save(place / "saves", [var], 0)
            with variable(es.StorageType.DRAM, tmp_path, filter_freq=4) as restored:
                es.restore(place / "saves", [restored])
                plain.train_until(applied(restored))
                assert_same(restored.export(), plain_var.export())
                for told, wanted in (
                    (restored.get_frequency(ids), plain_var.get_frequency(ids)),
                    (restored.get_version(ids), plain_var.get_version(ids)),
                ):
                    np.testing.assert_array_equal(told, wanted)
    assert trainer.overlapped > 10


class SlowSave:
    """Stands in for the core's save. Its write lasts until `goes_on` is set."""

    def __init__(self) -> None:
        self.writes, self.goes_on = threading.Event(), threading.Event()

    def write(self, _skip_damaged: bool) -> None:
        self.writes.set()
        assert self.goes_on.wait(30)
        self.writes.clear()
        raise MemoryError

    def abandon(self) -> None:
        assert not self.writes.is_set(), "the thread that writes would use what is gone"


def test_a_save_that_ctrl_c_gives_up_stays_until_its_thread_has_written_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A second Ctrl-C comes while the first waits for the threads that write."""
    slow = SlowSave()
    monkeypatch.setattr(_core, "prepare_save", lambda *_, **__: slow)
    with variable(es.StorageType.DRAM, tmp_path) as var, ThreadPoolExecutor(2) as threads:
        (shard,) = var.internals.shards
        assert isinstance(shard, LocalShard)
        save = shard.prepare_save(SaveRequest("rows", bytes(16), 0, 1, False, None, None))
        written = threads.submit(save.write, False)
        assert slow.writes.wait(30)
        lock = ReportingLock(save._in_use)
        monkeypatch.setattr(save, "_in_use", lock)
        given_up = threads.submit(save.__exit__)
        lock.wait_for(given_up)
        slow.goes_on.set()
        given_up.result(30)
        assert isinstance(written.exception(30), MemoryError)
