"""Storage types are rows of one table: each is an ordered list of tiers."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest

import embstore as es
from embstore.options import TIER_KINDS, TierKind

GIB = 1 << 30
_IN_FILES = (TierKind.PMEM_LIBPMEM, TierKind.SSDHASH, TierKind.LEVELDB)


def test_storage_types_have_deeprecs_numbers() -> None:
    numbers = {storage_type.name: int(storage_type) for storage_type in es.StorageType}
    assert numbers == {
        "DRAM": 1,
        "PMEM_MEMKIND": 2,
        "PMEM_LIBPMEM": 3,
        "SSDHASH": 4,
        "LEVELDB": 5,
        "HBM": 6,
        "DRAM_PMEM": 11,
        "DRAM_SSDHASH": 12,
        "HBM_DRAM": 13,
        "DRAM_LEVELDB": 14,
        "DRAM_PMEM_SSDHASH": 101,
        "HBM_DRAM_SSDHASH": 102,
        "DRAM_PMEM_LEVELDB": 103,
        "HBM_DRAM_LEVELDB": 104,
        "HBM_DRAM_PMEM": 105,
        "HBM_DRAM_PMEM_LEVELDB": 106,
        "HBM_DRAM_PMEM_SSDHASH": 107,
    }


@pytest.mark.parametrize("storage_type", es.StorageType)
def test_a_compound_name_lists_its_tiers(storage_type: es.StorageType) -> None:
    kinds = [kind.value for kind in TIER_KINDS[storage_type]]
    if storage_type in (es.StorageType.SSDHASH, es.StorageType.LEVELDB):
        assert kinds == ["DRAM", storage_type.name]
    else:
        assert "_".join(kinds) == storage_type.name


def test_a_number_will_do_for_a_storage_type() -> None:
    assert es.StorageOption(3, storage_path="/tmp").storage_type is es.StorageType.PMEM_LIBPMEM


@pytest.mark.parametrize("storage_type", es.StorageType)
@pytest.mark.parametrize("spelled", [str.upper, str.lower])
def test_a_name_will_do_for_a_storage_type(
    storage_type: es.StorageType, spelled: Callable[[str], str], tmp_path: Path
) -> None:
    path = tmp_path if any(kind in _IN_FILES for kind in TIER_KINDS[storage_type]) else None
    option = es.StorageOption(spelled(storage_type.name), storage_path=path)
    assert option == es.StorageOption(storage_type, storage_path=path)
    assert option.storage_type is storage_type


@pytest.mark.parametrize(
    ("name", "strategy"), [("lru", es.CacheStrategy.LRU), ("LFU", es.CacheStrategy.LFU)]
)
def test_a_name_will_do_for_a_cache_strategy(name: str, strategy: es.CacheStrategy) -> None:
    assert es.StorageOption(cache_strategy=name).cache_strategy is strategy


def test_options_by_name_are_copied_and_pickled_as_others_are() -> None:
    option = es.StorageOption("dram_pmem", cache_strategy="lru")
    copies = [replace(option), copy.deepcopy(option), pickle.loads(pickle.dumps(option))]
    assert copies == [option] * 3
    assert repr(option) == repr(
        es.StorageOption(es.StorageType.DRAM_PMEM, cache_strategy=es.CacheStrategy.LRU)
    )
    with pytest.raises(FrozenInstanceError):
        option.storage_type = es.StorageType.DRAM  # type: ignore[misc]


def test_a_tier_without_a_size_has_one_gib() -> None:
    (tier,) = es.StorageOption().tiers()
    assert tier.size_bytes == GIB


def test_a_last_tier_on_ssd_without_a_size_has_no_limit(tmp_path: Path) -> None:
    option = es.StorageOption(
        es.StorageType.DRAM_PMEM_LEVELDB, storage_path=tmp_path, storage_size=[1024]
    )
    sizes = [tier.size_bytes for tier in option.tiers()]
    assert sizes == [1024, GIB, None]


@pytest.mark.parametrize(
    ("size", "size_bytes"),
    [("100", 100), ("3K", 3 << 10), ("512M", 512 << 20), ("4G", 4 << 30), ("2T", 2 << 40)],
)
def test_a_size_may_have_a_unit(size: str, size_bytes: int) -> None:
    (tier,) = es.StorageOption(storage_size=[size]).tiers()
    assert tier.size_bytes == size_bytes


@pytest.mark.parametrize("size", ["", "0", "-1", "4 G", "4g", "4GB", "1.5G", "9" * 15 + "T", "٣"])
def test_text_that_is_no_size_is_refused(size: str) -> None:
    with pytest.raises(es.errors.InvalidArgumentError, match=r"storage_size\[0\]"):
        es.StorageOption(storage_size=[size])


def test_the_files_of_ssdhash_take_sizes_too() -> None:
    option = es.SSDHashOption(file_bytes="64K", buffer_bytes="1M")
    assert (option.file_bytes, option.buffer_bytes) == (64 << 10, 1 << 20)
    with pytest.raises(
        es.errors.InvalidArgumentError, match="file_bytes must be at least 65536 bytes"
    ):
        es.SSDHashOption(file_bytes="1K")


def test_pmem_is_libpmem_on_its_path_and_memkind_without_one(tmp_path: Path) -> None:
    def pmem_kind(path: Path | list[Path | None] | None) -> TierKind:
        option = es.StorageOption(es.StorageType.DRAM_PMEM, storage_path=path)
        return option.tiers()[1].kind

    assert pmem_kind(None) is TierKind.PMEM_MEMKIND
    assert pmem_kind([None, None]) is TierKind.PMEM_MEMKIND
    assert pmem_kind(tmp_path) is TierKind.PMEM_LIBPMEM
    assert pmem_kind([None, tmp_path]) is TierKind.PMEM_LIBPMEM


def test_one_path_serves_every_tier_that_keeps_files(tmp_path: Path) -> None:
    option = es.StorageOption(es.StorageType.DRAM_PMEM_SSDHASH, storage_path=tmp_path)
    assert [tier.path for tier in option.tiers()] == [None, str(tmp_path), str(tmp_path)]


def test_the_cache_is_lfu_unless_told_otherwise() -> None:
    assert es.StorageOption().cache_strategy is es.CacheStrategy.LFU


def test_deeprecs_defaults_of_initial_rows() -> None:
    option = es.InitializerOption()
    assert (option.default_value_dim, option.default_value_no_permission) == (4096, 0.0)
