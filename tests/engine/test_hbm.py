"""Tables with a tier in a GPU's memory: choosing the GPU, statistics, and errors."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_storage import GPU, MakeVariable, needs_the_emulated_gpu
from example_devices import ExampleDevice
from programs import run_program

import embstore as es
from embstore.errors import (
    InvalidArgumentError,
    MissingDeviceError,
    MissingLibraryError,
    StoreFullError,
)
from embstore.gpu.choice import gpu_to_open

HBM_TYPES = [kind for kind in es.StorageType if "HBM" in kind.name]
ROW_BYTES = 32  # dim 3, weights and an accumulator


def hbm(rows: int = 100, **options: Any) -> es.StorageOption:
    return es.StorageOption(es.StorageType.HBM, storage_size=[rows * ROW_BYTES], **options)


def hbm_above_dram(rows: int) -> es.StorageOption:
    return es.StorageOption(es.StorageType.HBM_DRAM, storage_size=[rows * ROW_BYTES, 1 << 20])


def ones(ids: Any) -> Any:
    return np.ones((*np.shape(ids), 3), np.float32)


# --- Choosing the GPU


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:12", "emulated", None])
def test_a_device_is_chosen_by_its_name(name: str | None) -> None:
    assert hbm(device=name).device == name


@pytest.mark.parametrize("name", ["", "gpu", "cuda:", "cuda:-1", "CUDA", "emulated:0", 0])
def test_an_unknown_device_name_is_refused_with_the_known_ones(name: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r'device must be "cuda", "cuda:N" .*"emulated"'):
        hbm(device=name)


def test_a_device_for_a_storage_type_without_hbm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="device: DRAM_SSDHASH has no tier of HBM"):
        es.StorageOption(es.StorageType.DRAM_SSDHASH, tmp_path, device="emulated")


def test_a_bad_name_in_the_environment_names_the_variable(
    make_variable: MakeVariable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBSTORE_DEVICE", "tpu")
    with pytest.raises(InvalidArgumentError, match=r"EMBSTORE_DEVICE must be .*got 'tpu'"):
        make_variable(storage=hbm())
    make_variable(storage=hbm(device="emulated"))
    make_variable()  # has no tier of HBM


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("EMBSTORE_DEVICE_SEED", "-1"),
        ("EMBSTORE_DEVICE_MEMORY", "4G"),
        ("EMBSTORE_DEVICE_MEMORY", "5"),
    ],
)
def test_a_bad_number_in_the_environment_names_the_variable(
    make_variable: MakeVariable, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidArgumentError, match=f"{variable} must be a number .*got {value}"):
        make_variable(storage=hbm(device="emulated"))


def test_no_gpu_is_emulated_unless_it_was_asked_for(tmp_path: Path) -> None:
    program = """
import embstore as es
option = es.EmbeddingVariableOption(es.StorageOption(es.StorageType.HBM, storage_size=[4096]))
try:
    print(es.get_embedding_variable("var", 3, ev_option=option).stats()["tiers"][0]["gpu"])
except (es.errors.MissingLibraryError, es.errors.MissingDeviceError) as error:
    assert "EMBSTORE_DEVICE=emulated" in str(error) or "embstore[gpu]" in str(error), error
"""
    environment = {name: value for name, value in os.environ.items() if name != "EMBSTORE_DEVICE"}
    done = run_program(program, environment=environment | {"XDG_CACHE_HOME": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert "emulated" not in done.stdout


def test_a_missing_gpu_is_an_error(make_variable: MakeVariable) -> None:
    with pytest.raises((MissingLibraryError, MissingDeviceError)):
        make_variable(storage=hbm(device="cuda:99"))


@pytest.mark.parametrize(
    ("packages", "expected"),
    [
        (["cu13/lib/libnvrtc.so.13"], "cu13/lib/libnvrtc.so.13"),
        (
            ["cu13/lib/libnvrtc.so.13", "cuda_nvrtc/lib/libnvrtc.so.12"],
            "cuda_nvrtc/lib/libnvrtc.so.12",
        ),
    ],
)
def test_kernels_are_compiled_by_an_installed_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, packages: list[str], expected: str
) -> None:
    for name in packages:
        library = tmp_path / "nvidia" / name
        library.parent.mkdir(parents=True)
        library.touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for name in [name for name in sys.modules if name.partition(".")[0] == "nvidia"]:
        monkeypatch.delitem(sys.modules, name)
    assert gpu_to_open("cuda")[1] == str(tmp_path / "nvidia" / expected)


# --- Statistics


@pytest.mark.parametrize("kind", HBM_TYPES, ids=lambda kind: kind.name)
def test_the_rows_of_a_drained_table_are_in_the_tiers_that_were_asked_for(
    make_variable: MakeVariable, kind: es.StorageType, tmp_path: Path
) -> None:
    storage = es.StorageOption(kind, _path_for(kind, tmp_path), [50 * ROW_BYTES])
    var = make_variable(storage=storage)
    ids = np.arange(40)
    var.apply_gradients(ids, ones(ids))
    var.drain()
    assert set(var.lookup_tier(ids)) == {0}
    tiers = var.stats()["tiers"]
    assert [tier["name"] for tier in tiers] == [tier.kind.value for tier in storage.tiers()]
    assert [tier["rows"] for tier in tiers] == [40, *[0] * (len(tiers) - 1)]
    assert tiers[0]["capacity_rows"] == 50
    var.lookup([*ids, 1000])
    assert (var.stats()["hits"], var.stats()["misses"]) == (40, 1)


def test_rows_that_pass_the_stage_are_neither_promoted_nor_demoted(
    make_variable: MakeVariable,
) -> None:
    var = make_variable(storage=hbm_above_dram(rows=100))
    ids = np.arange(60)
    for _ in range(3):
        var.lookup(ids)
        var.apply_gradients(ids, ones(ids))
        var.drain()
    assert (var.stats()["promotions"], var.stats()["demotions"]) == (0, 0)
    var.apply_gradients(np.arange(60, 120), ones(ids))
    var.drain()
    assert (var.stats()["promotions"], var.stats()["demotions"]) == (0, 20)
    assert (var.lookup_tier(np.arange(120)) == 1).sum() == 20


def test_a_full_table_counts_the_rows_that_were_asked_for(make_variable: MakeVariable) -> None:
    var = make_variable(storage=hbm(rows=10))
    var.apply_gradients(np.arange(8), ones(np.arange(8)))
    with pytest.raises(StoreFullError, match=r"brings 3 new rows, .* room for 2 more of their 10"):
        var.apply_gradients(np.arange(7, 11), ones(np.arange(4)))
    assert var.total_count() == (8, 3)


def test_a_restore_takes_few_rows_to_the_gpu_that_do_not_stay_there(
    make_variable: MakeVariable, tmp_path: Path
) -> None:
    ids = np.arange(10_000)
    storage = hbm_above_dram(rows=4100)
    saved = make_variable(name="var", storage=storage)
    saved.apply_gradients(ids, ones(ids))
    es.save(tmp_path / "save", [saved], 1)
    var = make_variable(name="var", storage=storage)
    es.restore(tmp_path / "save", [var])
    assert var.lookup_tier(ids).tolist() == [1] * 5900 + [0] * 4100
    stored = [
        count["accesses"] // 2  # a row and its header
        for count in var.stats()["tiers"][0]["accesses"]
        if count["access"] is es.Access.STORE
    ]
    assert 4100 <= sum(stored) < 7000


def test_dram_below_is_pinned_if_the_memory_is_there(make_variable: MakeVariable) -> None:
    ids = np.arange(1000)
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    too_many = memory_bytes // 4  # for rows of 32 bytes, each of which keeps 128 more free
    for dram_bytes, is_pinned in ((1 << 20, True), (too_many, False)):
        sizes = [100 * ROW_BYTES, dram_bytes]
        storage = es.StorageOption(es.StorageType.HBM_DRAM, storage_size=sizes)
        with make_variable(storage=storage) as var:
            var.apply_gradients(ids, ones(ids))
            var.drain()
            expected = var.lookup(ids)
            assert [tier["is_pinned"] for tier in var.stats()["tiers"]] == [None, is_pinned]
            on_gpu = var.lookup(es.DeviceArray(ids, GPU))
            np.testing.assert_array_equal(on_gpu.numpy(), expected)


def test_devices_and_recordings_know_the_tiers_that_were_asked_for(
    make_variable: MakeVariable,
) -> None:
    sizes = [20 * ROW_BYTES, 1 << 20]
    fast = ExampleDevice("fast", lambda *_: 100.0)
    storage = es.StorageOption(
        es.StorageType.HBM_DRAM, storage_size=sizes, devices=[fast, None], device="emulated"
    )
    var = make_variable(storage=storage, partition_num=2)
    with es.record_accesses(var) as recorded:
        for first in (0, 50, 0):
            ids = np.arange(first, first + 100)
            var.apply_gradients(ids, ones(ids))
            var.lookup(ids)
            var.drain()
    tiers = var.stats()["tiers"]
    assert [tier["device"] for tier in tiers] == ["fast", None] * 2
    for number in range(2):
        told = [count for tier in tiers[number::2] for count in tier["accesses"]]
        phases = recorded.phases[recorded.phases["tier"] == number]
        assert phases["accesses"].sum() == sum(count["accesses"] for count in told) > 0
        assert set(phases["access"]) == {es.Access.LOAD, es.Access.STORE}
    assert set(recorded.phases["tier"]) == {0, 1}


def test_rows_that_the_gpu_misses_are_recorded_with_the_caches_that_have_them(
    make_variable: MakeVariable,
) -> None:
    ids = np.arange(5000)
    var = make_variable(storage=hbm_above_dram(rows=100))
    var.apply_gradients(ids, ones(ids))
    var.drain()
    missing = ids[var.lookup_tier(ids) == 1]
    for asked in (missing, es.DeviceArray(missing, GPU)):
        with es.record_accesses(var, caches=[es.Caches("16M")]) as recorded:
            for _ in range(2):
                var.lookup(asked, train=True)
                var.synchronize()
        of_dram = recorded.phases[recorded.phases["tier"] == 1]
        assert of_dram["accesses"].sum() == 2 * missing.size
        assert of_dram["hits"].sum() > missing.size / 2


# --- Too little memory on the device


def test_an_error_about_a_tier_larger_than_the_device_gives_both_sizes(
    make_variable: MakeVariable,
) -> None:
    with pytest.raises(StoreFullError, match=r"storage_size: .*out of memory: .* are free"):
        make_variable(storage=hbm(rows=1 << 28, device="emulated"))
    make_variable(storage=hbm(device="emulated"))


@needs_the_emulated_gpu
def test_a_batch_larger_than_free_device_memory_is_refused_and_smaller_ones_go_on(
    make_variable: MakeVariable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBSTORE_DEVICE_MEMORY", str(30 << 20))
    var = make_variable(storage=hbm_above_dram(rows=100))
    many = es.DeviceArray(np.arange(700_000), device="emulated")
    grads = es.DeviceArray.empty((700_000, 3), np.float32, device="emulated")
    full = r"a batch of 700000 ids doesn't fit .*out of memory: .* free; .*smaller batches"
    with pytest.raises(StoreFullError, match=full):
        var.lookup(many, train=True)
    with pytest.raises(StoreFullError, match=full):
        var.apply_gradients(many, grads)
    assert var.total_count() == (0, 3)
    few = np.arange(50)
    var.apply_gradients(es.DeviceArray(few, "emulated"), es.DeviceArray(ones(few), "emulated"))
    assert var.total_count() == (50, 3)


def _path_for(kind: es.StorageType, path: Path) -> Path | None:
    return path if kind.name.endswith(("SSDHASH", "LEVELDB")) else None
