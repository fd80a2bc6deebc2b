"""A variable speaks to a shard through one interface, whatever stands behind it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from checkpoint_variables import assert_same, train
from engine_storage import MIB
from numpy.typing import NDArray

import embstore as es
from embstore.errors import ClosedError, StoreFullError
from embstore.table.making import make_variable
from embstore.table.shard import LocalShard, Shard, ShardSpec

pytestmark = pytest.mark.timeout(120)  # a process that is gone answers nothing


def serve(connection: Connection) -> None:
    """A process that holds a shard: each message is a method's name and its arguments."""
    shard: LocalShard | None = None
    while True:
        try:
            method, arguments, options = connection.recv()
        except EOFError:
            return
        try:
            if method == "__init__":
                shard, answer = LocalShard(*arguments), None
            else:
                answer = getattr(shard, method)(*arguments, **options)
            connection.send((answer, None))
        except Exception as error:
            connection.send((None, error))


class ShardElsewhere:
    """Stands in for a shard in a process of its own."""

    def __init__(self, spec: ShardSpec) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._here, there = spawn.Pipe()
        self.process = spawn.Process(target=serve, args=(there,))
        self.process.start()
        there.close()
        self._call("__init__", spec)

    def lookup(
        self,
        ids: NDArray[np.int64],
        train: bool,
        out: NDArray[np.float32] | None = None,
        occurrences: NDArray[np.uint32] | None = None,
        count: bool = True,
    ) -> NDArray[np.float32]:
        rows: NDArray[np.float32] = self._call("lookup", ids, train, None, occurrences, count)
        if out is None:
            return rows
        out[...] = rows
        return out

    def __getattr__(self, method: str) -> Any:
        if method.startswith("_") or method not in dir(LocalShard):
            raise AttributeError(method)
        return lambda *arguments, **options: self._call(method, *arguments, **options)

    def end(self) -> None:
        self._here.close()
        self.process.join()

    def _call(self, method: str, *arguments: Any, **options: Any) -> Any:
        self._here.send((method, arguments, options))
        answer, error = self._here.recv()
        if error is not None:
            raise error
        return answer


@pytest.fixture
def elsewhere() -> Iterator[list[ShardElsewhere]]:
    made: list[ShardElsewhere] = []
    yield made
    for shard in made:
        shard.end()


def twins(
    elsewhere: list[ShardElsewhere], directory: Path, size: int = MIB
) -> tuple[es.EmbeddingVariable, es.EmbeddingVariable]:
    """The same variable twice: with its shard here, and with it in a process of its own."""

    def make(name: str) -> es.EmbeddingVariable:
        def make_elsewhere(spec: ShardSpec) -> Shard:
            elsewhere.append(ShardElsewhere(spec))
            return cast(Shard, elsewhere[-1])

        (directory / name).mkdir()
        return make_variable(
            "var",
            3,
            initializer=es.initializers.RandomUniform(-1.0, 1.0, seed=7),
            optimizer=es.optimizers.Adam(0.1),
            ev_option=es.EmbeddingVariableOption(
                storage_option=es.StorageOption(
                    es.StorageType.DRAM_SSDHASH, [None, directory / name], [8 * 48, size]
                ),
                filter_option=es.CounterFilter(2),
                evict_option=es.GlobalStepEvict(steps_to_live=7),
            ),
            make_shard=make_elsewhere if name == "elsewhere" else LocalShard,
        )

    return make("here"), make("elsewhere")


def test_a_variable_whose_shard_is_in_another_process_is_like_any_other(
    elsewhere: list[ShardElsewhere], tmp_path: Path
) -> None:
    here, there = twins(elsewhere, tmp_path)
    ids = np.arange(-4, 60).reshape(4, 16) * 7919 - 40_000
    with here, there:
        for var in (here, there):
            train(var, seed=1)
            es.save(tmp_path / f"saved-{id(var)}", [var], 5)
            train(var, seed=2)
            es.save_incremental(tmp_path / f"increment-{id(var)}", [var], 10)
        trained = here.export()
        assert trained["keys"].size > 8
        assert_same(there.export(), trained)
        for read in ("lookup", "lookup_tier", "get_frequency", "get_version"):
            for var in (here, there):
                var.drain()
            np.testing.assert_array_equal(getattr(there, read)(ids), getattr(here, read)(ids))
        assert there.total_count() == here.total_count()
        assert there.stats()["waiting_keys"] == here.stats()["waiting_keys"]
        assert there.damaged_keys().size == 0

        for var, other in ((here, there), (there, here)):  # each restores what the other saved
            train(var, seed=3)
            es.restore(
                tmp_path / f"saved-{id(other)}", [var], [tmp_path / f"increment-{id(other)}"]
            )
            assert_same(var.export(), trained)
        for var in (here, there):
            train(var, seed=4)
        assert_same(there.export(), here.export())
    with pytest.raises(ClosedError, match="var"):
        there.lookup(ids)


def test_errors_of_a_shard_elsewhere_are_those_of_one_here(
    elsewhere: list[ShardElsewhere], tmp_path: Path
) -> None:
    here, there = twins(elsewhere, tmp_path, size=48)
    told = []
    with here, there:
        for var in (here, there):
            ids = np.arange(100).repeat(2)
            with pytest.raises(StoreFullError) as refused:
                var.apply_gradients(ids, np.ones((200, 3), np.float32))
            told.append(str(refused.value))
            assert var.total_count() == (0, 3)
    assert told[0] == told[1]
