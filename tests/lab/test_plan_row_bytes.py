"""The bytes per row that a plan assumes, compared with the engine's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import embstore as es
from embstore.bench import memory_process
from embstore.options import TIER_KINDS, TierKind
from pmemlab.errors import PlanError
from pmemlab.model.planning.row_bytes import RowShape, optimizer_by_name, row_bytes_in_tier


@pytest.mark.parametrize("dim", [1, 4, 7, 16, 33, 64])
@pytest.mark.parametrize("name", ["SGD", "Adagrad", "Adam"])
def test_a_row_has_as_many_bytes_as_in_the_engine(dim: int, name: str) -> None:
    optimizer = optimizer_by_name(name)
    with es.get_embedding_variable(
        "row", embedding_dim=dim, initializer=es.initializers.Ones(), optimizer=optimizer
    ) as variable:
        (tier,) = variable.stats()["tiers"]
    assert RowShape(dim, len(optimizer.slots)).row_bytes == tier["row_bytes"]


def test_an_ssdhash_tier_s_files_have_the_planned_bytes(tmp_path: Path) -> None:
    """The files of an SSDHASH tier have one to two times the planned record bytes per row."""
    rows, dim = 20_000, 16
    option = es.StorageOption(
        storage_type=es.StorageType.DRAM_SSDHASH,
        storage_path=tmp_path,
        storage_size=[100 * 2 * 64],
    )
    with es.get_embedding_variable(
        "files",
        embedding_dim=dim,
        initializer=es.initializers.Ones(),
        optimizer=optimizer_by_name("adagrad"),
        ev_option=es.EmbeddingVariableOption(storage_option=option),
    ) as variable:
        variable.apply_gradients(np.arange(rows), np.zeros((rows, dim), np.float32))
        variable.drain()
        below = variable.stats()["tiers"][1]["rows"]
        on_disk = sum(path.stat().st_size for path in tmp_path.rglob("*.ssdhash"))
    planned = row_bytes_in_tier(RowShape(dim, 1), TIER_KINDS[es.StorageType.DRAM_SSDHASH], 1)
    assert planned.record == 64 + 2 * 64
    assert planned.tier == 2 * planned.record
    # Rows that are gathered for the next write aren't on the disk yet.
    gathered = (4 << 20) // 8
    assert below * planned.record - gathered <= on_disk <= below * planned.tier


@pytest.mark.long
@pytest.mark.parametrize(
    ("storage_type", "tier"),
    [("DRAM_SSDHASH", 1), ("DRAM_LEVELDB", 1)],
)
def test_planned_dram_beside_rows_matches_the_growth_of_a_process(
    storage_type: str, tier: int, tmp_path: Path
) -> None:
    """With few rows, buffers of constant size count too: LevelDB's take at most 12 MiB."""
    rows = 400_000
    measured = memory_process.measure_in_separate_process(
        memory_process.Request(storage_type, tier, rows, 1024, 16, 1, "hashed", str(tmp_path))
    )
    kinds = TIER_KINDS[es.StorageType[storage_type]]
    planned = row_bytes_in_tier(RowShape(16, 1), kinds, tier).dram
    buffers = 12 << 20
    assert 0.7 * planned * rows <= measured.dram_bytes <= 1.35 * planned * rows + buffers


def test_each_tier_has_its_own_bytes_per_row() -> None:
    shape = RowShape(64, 1)
    assert shape.row_bytes == 512
    alone = row_bytes_in_tier(shape, TIER_KINDS[es.StorageType.DRAM], 0)
    assert (alone.tier, alone.dram) == (512 + 16, 20.9)
    three = TIER_KINDS[es.StorageType.DRAM_PMEM_SSDHASH]
    first, middle, last = (row_bytes_in_tier(shape, three, tier) for tier in range(3))
    assert (first.tier, first.dram) == (512, 20.8 + 32 + 16)
    assert (middle.tier, middle.dram) == (512 + 48, 37.5)
    assert (last.tier, last.dram) == (2 * (512 + 64), 22.1)
    below = row_bytes_in_tier(shape, (TierKind.DRAM, TierKind.PMEM), 1)
    assert (below.tier, below.dram) == (512 + 48, 21.4)
    leveldb = row_bytes_in_tier(shape, TIER_KINDS[es.StorageType.DRAM_LEVELDB], 1)
    assert leveldb.tier == pytest.approx(1.11 * (512 + 85))


def test_optimizer_names_are_found_in_any_case() -> None:
    for name in es.optimizers.__all__:
        if name != "Optimizer":
            kind = type(optimizer_by_name(name.lower()))
            assert kind is getattr(es.optimizers, name)


def test_an_unknown_optimizer_is_refused() -> None:
    with pytest.raises(PlanError, match="--optimizer lion: must be one of SGD, Adadelta, Adagrad"):
        optimizer_by_name("lion")
