"""The check of hunted asynchronous jobs finds updates that are lost or applied twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from updates_seen import (
    STEPS,
    TABLES,
    WORKERS,
    assert_updates_were_applied_once,
    ids_of_update,
    keys_of_shards,
    write_rows,
)

import embstore as es

BEGUN = 12  # step of the checkpoint that the last start continues from
BOTH = (0, 1)  # shards

Tables = Sequence[es.EmbeddingVariable]


@pytest.fixture
def tables() -> Iterator[Tables]:
    made = [
        es.get_embedding_variable(
            f"items{number}",
            4,
            initializer=es.initializers.Zeros(),
            optimizer=es.optimizers.SGD(1.0),
        )
        for number in range(TABLES)
    ]
    yield made
    for table in made:
        table.close()


def update(tables: Tables, rank: int, step: int, shards: Sequence[int] = BOTH) -> None:
    here = np.concatenate([keys_of_shards()[shard] for shard in shards])
    ids = ids_of_update(rank, step)
    ids = ids[np.isin(ids, here)]
    for table in tables:
        table.apply_gradients(ids, np.full((ids.size, 4), -1.0, np.float32), step)


def begin(tables: Tables, folder: Path, ahead: int) -> None:
    """Writes a first start without a checkpoint, and the checkpoint that the next start continues
    from; worker 1 was `ahead` steps ahead when worker 0 made it.
    """
    write_rows(folder / "first", tables, 0, "")
    for rank, until in enumerate((BEGUN, BEGUN + ahead)):
        for step in range(until):
            update(tables, rank, step)
    if ahead:
        update(tables, 1, BEGUN + ahead, [0])  # and the other shard hasn't
    write_rows(folder / "second", tables, BEGUN, "first")


def end(tables: Tables, folder: Path, left_out: tuple[int, int] | None = None) -> None:
    for rank in range(WORKERS):
        for step in range(BEGUN, STEPS):
            if (rank, step) != left_out:
                update(tables, rank, step)
    write_rows(folder / "result", tables, STEPS, "second")


@pytest.mark.parametrize("ahead", [0, 3])
def test_updates_of_other_workers_may_be_applied_twice_unless_workers_meet(
    tables: Tables, tmp_path: Path, ahead: int
) -> None:
    begin(tables, tmp_path, ahead)
    end(tables, tmp_path)
    assert_updates_were_applied_once(tmp_path, meets=False)
    if ahead:
        with pytest.raises(AssertionError, match="worker 1"):
            assert_updates_were_applied_once(tmp_path, meets=True)
    else:
        assert_updates_were_applied_once(tmp_path, meets=True)


@pytest.mark.parametrize("rank", range(WORKERS))
@pytest.mark.parametrize("step", [BEGUN, 40, STEPS - 1])
def test_an_update_that_is_lost_is_found(
    tables: Tables, tmp_path: Path, rank: int, step: int
) -> None:
    begin(tables, tmp_path, 3)
    end(tables, tmp_path, left_out=(rank, step))
    with pytest.raises(AssertionError, match=f"worker {rank}"):
        assert_updates_were_applied_once(tmp_path, meets=False)


@pytest.mark.parametrize("rank", range(WORKERS))
@pytest.mark.parametrize("shard", BOTH)
def test_an_update_that_is_applied_twice_is_found(
    tables: Tables, tmp_path: Path, rank: int, shard: int
) -> None:
    begin(tables, tmp_path, 3)
    update(tables, rank, 30, [shard])
    end(tables, tmp_path)
    with pytest.raises(AssertionError, match=f"shard {shard}, worker {rank}"):
        assert_updates_were_applied_once(tmp_path, meets=False)


def test_a_checkpoint_that_lacks_an_update_of_worker_0_is_found(
    tables: Tables, tmp_path: Path
) -> None:
    write_rows(tmp_path / "first", tables, 0, "")
    for step in range(BEGUN - 1):
        update(tables, 0, step)
    write_rows(tmp_path / "second", tables, BEGUN, "first")
    end(tables, tmp_path)
    with pytest.raises(AssertionError, match="worker 0"):
        assert_updates_were_applied_once(tmp_path, meets=False)


def test_an_update_that_only_some_tables_have_is_found(tables: Tables, tmp_path: Path) -> None:
    begin(tables, tmp_path, 0)
    end(tables, tmp_path, left_out=(1, STEPS - 1))
    update(tables[:1], 1, STEPS - 1)
    write_rows(tmp_path / "result", tables, STEPS, "second")
    with pytest.raises(AssertionError, match="table 1"):
        assert_updates_were_applied_once(tmp_path, meets=True)
