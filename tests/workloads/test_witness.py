"""The witness process finds tables' rows, and detects engines that lie about them."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import fcntl
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore as es
from pmemlab.scenarios.document import Expectations, RowPlacement, Scenario
from pmemlab.scenarios.verdict import ExpectationError, judge_placement
from pmemlab.topology import load_topology
from pmemlab.workloads.evidence import TableEvidence, examine_tables

KEYS = np.arange(12_000)
KIB = 1 << 10

Storage = Callable[[Path], es.StorageOption]
STORAGES: dict[str, Storage] = {
    "DRAM": lambda _: es.StorageOption(es.StorageType.DRAM),
    "PMEM_LIBPMEM": lambda path: es.StorageOption(
        es.StorageType.PMEM_LIBPMEM, path, [KEYS.size * 128]
    ),
    "DRAM_PMEM": lambda path: es.StorageOption(
        es.StorageType.DRAM_PMEM, [None, path], [16 * KIB, KEYS.size * 128]
    ),
    "DRAM_SSDHASH": lambda path: es.StorageOption(
        es.StorageType.DRAM_SSDHASH,
        [None, path],
        [16 * KIB],
        ssdhash_option=es.SSDHashOption(buffer_bytes=128 * KIB),
    ),
    "DRAM_SSDHASH_DIRECT": lambda path: es.StorageOption(
        es.StorageType.DRAM_SSDHASH,
        [None, path],
        [16 * KIB],
        ssdhash_option=es.SSDHashOption(buffer_bytes=128 * KIB, direct_io=True),
    ),
    "DRAM_LEVELDB": lambda path: es.StorageOption(
        es.StorageType.DRAM_LEVELDB, [None, path], [16 * KIB]
    ),
}
GPU_STORAGES: dict[str, Storage] = {
    "HBM": lambda _: es.StorageOption(
        es.StorageType.HBM, storage_size=[KEYS.size * 64], device="emulated"
    ),
    "HBM_DRAM": lambda _: es.StorageOption(
        es.StorageType.HBM_DRAM, storage_size=[16 * KIB], device="emulated"
    ),
}
IN_GPU = RowPlacement(gpu="emulated")


@contextlib.contextmanager
def trained(
    kind: str, folder: Path, name: str = "table", seed: int = 4
) -> Iterator[es.EmbeddingVariable]:
    folder.mkdir(exist_ok=True)
    try:
        variable = es.get_embedding_variable(
            name,
            8,
            initializer=es.initializers.RandomUniform(seed=seed),
            optimizer=es.optimizers.Adagrad(0.1),
            ev_option=es.EmbeddingVariableOption(
                storage_option={**STORAGES, **GPU_STORAGES}[kind](folder)
            ),
        )
    except es.errors.MissingLibraryError as error:
        pytest.skip(str(error))
    with variable:
        for part in np.array_split(KEYS, 6):
            variable.apply_gradients(part, np.ones((part.size, 8), np.float32))
        variable.drain()
        yield variable


def examined(variable: Any) -> TableEvidence:
    return examine_tables([variable], [variable.export()])[1][0]


def complaint(table: TableEvidence, *placements: RowPlacement) -> str | None:
    """Returns the complaint of a scenario that expects rows in these places; None if it has
    none.
    """
    return complaint_of([table], *placements)


def complaint_of(tables: Sequence[TableEvidence], *placements: RowPlacement) -> str | None:
    dram = {"storage_type": "other"}  # the reference is not judged here
    scenario = Scenario(
        path=Path("x.yaml"),
        name="x",
        summary="",
        topology=load_topology("dram"),
        storage_types=(),
        expect=Expectations(None, tiers=placements),
    )
    document = {"run": {"tables": [*map(dataclasses.asdict, tables)]}, "reference": dram}
    try:
        judge_placement(scenario, scenario.topology, {}, {}, document)
    except ExpectationError as error:
        return str(error)
    return None


class Liar:
    """An engine that keeps its rows in one place and says that they are in another.

    tiers: the false claims about its tiers, over the first tier's true figures.
    """

    def __init__(self, variable: es.EmbeddingVariable, tiers: Sequence[dict[str, Any]]) -> None:
        self._variable = variable
        self._tiers = tiers
        self.name = variable.name
        self.export = variable.export
        self.lookup = variable.lookup

    def stats(self) -> dict[str, Any]:
        stats: Any = self._variable.stats()
        truth = dict(stats["tiers"][0])
        return {**stats, "tiers": [{**truth, **lie} for lie in self._tiers]}

    def lookup_tier(self, ids: Any) -> Any:
        return np.full(np.shape(ids), len(self._tiers) - 1)


@pytest.mark.parametrize("kind", STORAGES)
def test_every_row_of_an_honest_engine_is_found(kind: str, tmp_path: Path) -> None:
    with trained(kind, tmp_path) as variable:
        table = examined(variable)
    assert table.exported_rows == KEYS.size
    for tier in table.tiers:
        assert tier.sought >= 8, tier
        # Up to a buffer of a disk's rows may not be written yet.
        min_rows = 0.75 * tier.sought if tier.name in ("SSDHASH", "LEVELDB") else tier.sought
        assert tier.found >= min_rows, tier
    anywhere = [
        RowPlacement(file_under=str(tmp_path)) if tier.file else RowPlacement(nodes=(0,))
        for tier in table.tiers
    ]
    assert complaint(table, *anywhere) is None


def test_reads_of_a_disk_through_the_page_cache_are_detected(tmp_path: Path) -> None:
    with trained("DRAM_LEVELDB", tmp_path / "leveldb") as variable:
        assert [tier.is_direct for tier in examined(variable).tiers] == [None, False]
    with trained("DRAM_SSDHASH", tmp_path / "cached") as variable:
        assert [tier.is_direct for tier in examined(variable).tiers] == [None, False]
    with trained("DRAM_SSDHASH_DIRECT", tmp_path / "direct") as variable:
        assert [tier.is_direct for tier in examined(variable).tiers] == [None, True]


@pytest.mark.parametrize("pages", [1, 1 << 10])
def test_a_decoy_file_for_rows_in_dram_is_detected(tmp_path: Path, pages: int) -> None:
    decoy = tmp_path / "table.pmem_libpmem"
    decoy.write_bytes(b"x" * pages * mmap.PAGESIZE)
    with (
        trained("DRAM", tmp_path) as variable,
        decoy.open("r+b") as file,
        mmap.mmap(file.fileno(), 0) as shown,
    ):
        byte = ctypes.c_char.from_buffer(shown)
        lie = {
            "name": "PMEM_LIBPMEM",
            "address": ctypes.addressof(byte),
            "mapped_bytes": len(shown),
            "path": str(decoy),
            "is_pmem": True,
        }
        table = examined(Liar(variable, [lie]))
        del byte
    shown_text = complaint(table, RowPlacement(file_under=str(tmp_path), is_pmem=True))
    assert shown_text is not None
    assert f"another process found 0 of {table.tiers[0].sought} rows in {decoy}" in shown_text
    assert ("too few for rows of" in shown_text) == (pages == 1)


def test_rows_that_stay_in_dram_aren_t_taken_for_a_disk_tiers(tmp_path: Path) -> None:
    folder = tmp_path / "table.ssdhash"
    folder.mkdir()
    (folder / "rows").write_bytes(b"x" * (1 << 20))
    with trained("DRAM", tmp_path) as variable:
        lies: list[dict[str, Any]] = [
            {"rows": 0},
            {"name": "SSDHASH", "address": 0, "mapped_bytes": 0, "path": str(folder)},
        ]
        table = examined(Liar(variable, lies))
    shown = str(complaint(table, RowPlacement(nodes=(0,)), RowPlacement(file_under=str(tmp_path))))
    assert (
        f"tier SSDHASH: another process found 0 of {table.tiers[1].sought} rows in {folder}"
        in shown
    )


def test_an_engine_that_underreports_its_rows_is_detected(tmp_path: Path) -> None:
    with trained("DRAM", tmp_path) as variable:
        table = examined(Liar(variable, [{"rows": 7}]))
    shown = str(complaint(table, RowPlacement(nodes=(0,))))
    assert f"exported {KEYS.size} rows, and its tiers say that they have 7" in shown


def test_a_row_that_differs_in_one_bit_is_not_found(tmp_path: Path) -> None:
    with trained("PMEM_LIBPMEM", tmp_path) as variable:
        export = variable.export()
        export["accumulator"].view(np.uint8)[:, -1] ^= 1
        table = examine_tables([variable], [export])[1][0]
    assert table.tiers[0].sought > 0
    assert table.tiers[0].found == 0


def test_rows_that_could_be_found_by_chance_are_not_sought(
    tmp_path: Path,
) -> None:
    with trained("DRAM", tmp_path) as variable:
        export = variable.export()
        alike = np.random.default_rng(1).random(KEYS.size) < 0.97
        for part in ("values", "accumulator"):
            export[part][alike] = 0
        table = examine_tables([variable], [export])[1][0]
    assert (table.tiers[0].sought, table.tiers[0].found) == (64, 64)


@pytest.mark.parametrize("kind", GPU_STORAGES)
def test_rows_are_found_in_the_memory_of_the_emulated_gpu(kind: str, tmp_path: Path) -> None:
    with trained(kind, tmp_path) as variable:
        before = variable.export()
        table = examined(variable)
        after = variable.export()
    first = table.tiers[0]
    assert (first.gpu, first.sought, first.found) == ("emulated", 64, 64)
    assert first.read_changed == first.sought
    placements = [IN_GPU, *(RowPlacement(nodes=(0,)) for _ in table.tiers[1:])]
    assert complaint(table, *placements) is None
    for name, column in before.items():  # the examination changes nothing
        np.testing.assert_array_equal(column, after[name])


def test_rows_that_stay_in_dram_aren_t_taken_for_a_gpus(tmp_path: Path) -> None:
    with trained("DRAM", tmp_path) as variable:
        lie = {"name": "HBM", "address": 0, "path": None, "gpu": "emulated"}
        without_gpu = examined(Liar(variable, [lie]))
        with trained("HBM", tmp_path, "another", seed=5):  # a GPU with other rows
            beside_gpu = examined(Liar(variable, [lie]))
    shown = str(complaint(without_gpu, IN_GPU))
    assert "lies in no memory of a GPU that was found; it must be that of emulated" in shown
    sought = beside_gpu.tiers[0].sought
    assert f"another process found 0 of {sought} rows in /memfd:emu" in str(
        complaint(beside_gpu, IN_GPU)
    )


@pytest.mark.parametrize("copies", ["in memory that is called so", "in a GPU's memory"])
def test_an_engine_that_shows_a_copy_in_a_gpus_memory_is_detected(
    tmp_path: Path, copies: str
) -> None:
    """A transfer could leave such a copy in the GPU's memory, of rows that are kept in DRAM."""
    with contextlib.ExitStack() as stack:
        variable = stack.enter_context(trained("DRAM", tmp_path))
        if copies == "in a GPU's memory":  # another table's, with the same rows
            stack.enter_context(trained("HBM", tmp_path, "another"))
        else:
            copy = os.memfd_create("emulated device")
            stack.callback(os.close, copy)
            export = variable.export()
            rows = np.hstack([export["values"], export["accumulator"]])
            os.write(copy, rows.tobytes() * 2)
        lie = {"name": "HBM", "address": 0, "path": None, "gpu": "emulated"}
        table = examined(Liar(variable, [lie]))
    first = table.tiers[0]
    assert (first.gpu, first.found, first.read_changed) == ("emulated", first.sought, 0)
    assert "the table read 0 of them so: it keeps rows elsewhere" in str(complaint(table, IN_GPU))


def test_a_file_named_like_the_emulated_gpus_memory_is_not_taken_for_it(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs a file in the root folder, which root alone can make")
    decoy = Path("/memfd:emulated device (deleted)")
    with contextlib.ExitStack() as stack:
        root = os.open("/", os.O_RDONLY)
        stack.callback(os.close, root)
        fcntl.flock(root, fcntl.LOCK_EX)  # another run's decoy has the same name
        variable = stack.enter_context(trained("DRAM", tmp_path))
        export = variable.export()
        rows = np.hstack([export["values"], export["accumulator"]])
        decoy.write_bytes(rows.tobytes())
        try:
            with decoy.open("rb"):
                lie = {"name": "HBM", "address": 0, "path": None, "gpu": "emulated"}
                table = examined(Liar(variable, [lie]))
        finally:
            decoy.unlink()
    assert (table.tiers[0].gpu, table.tiers[0].found) == (None, 0)


def test_rows_of_several_tables_must_fit_the_gpus_memory_together(tmp_path: Path) -> None:
    with trained("HBM", tmp_path) as variable:
        first = examined(variable)
    [tier] = first.tiers
    holds = sum(tier.devices.values())
    others = dataclasses.replace(tier, bytes=holds)
    assert complaint(first, IN_GPU) is None
    tables = [first, dataclasses.replace(first, tiers=[others])]
    assert f"the GPU holds {holds} bytes, too few for rows of {holds + tier.bytes}" in str(
        complaint_of(tables, IN_GPU)
    )


def test_rows_claimed_on_a_real_gpu_are_not_found(tmp_path: Path) -> None:
    with trained("HBM", tmp_path) as variable:
        table = examined(Liar(variable, [{"gpu": "NVIDIA H100 80GB HBM3"}]))
    assert (table.tiers[0].gpu, table.tiers[0].found, table.tiers[0].read_changed) == (
        None,
        0,
        None,
    )
    assert "lies in no memory of a GPU that was found" in str(complaint(table, IN_GPU))
