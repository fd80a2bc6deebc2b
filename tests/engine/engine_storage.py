"""The storage types that run here, and the types of the fixtures in conftest.py."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore as es
from embstore.gpu.choice import EMULATED, VARIABLE, full_name
from embstore.options import TIER_KINDS, TierKind

MIB = 1 << 20

# The environment's GPU if it names one (`EMBSTORE_DEVICE=cuda pytest tests/engine` tests a real
# one), else the emulated GPU.
GPU = full_name(os.environ.get(VARIABLE) or EMULATED)
needs_the_emulated_gpu = pytest.mark.skipif(
    GPU != EMULATED, reason="asks for what only the emulated GPU can do"
)

# SSDHASH and LEVELDB are further names of DRAM_SSDHASH and DRAM_LEVELDB.
STORAGE_TYPES = tuple(kind for kind in TIER_KINDS if kind.name not in ("SSDHASH", "LEVELDB"))
TIERED = tuple(kind for kind in STORAGE_TYPES if len(TIER_KINDS[kind]) > 1)

# The library that each kind of tier needs, and its package in Debian and Ubuntu.
_LIBRARIES = {
    TierKind.PMEM_LIBPMEM: ("libpmem.so.1", "libpmem1"),
    TierKind.PMEM_MEMKIND: ("libmemkind.so.0", "libmemkind0"),
    TierKind.LEVELDB: ("libleveldb.so.1d", "libleveldb1d"),
}


def _folder_in_memory() -> Path | None:
    folder = Path("/dev/shm")
    has_room = folder.is_dir() and shutil.disk_usage(folder).free > 1 << 30
    return folder if has_room else None


# A folder in memory for files that need no disk, if it has room for all tests that run at once. No
# test waits for a disk there, and files are mapped as PMem's are.
IN_MEMORY = _folder_in_memory()

StorageOf = Callable[..., es.StorageOption]
MakeVariable = Callable[..., es.EmbeddingVariable]


@dataclass(frozen=True)
class Stack:
    """A storage type and, if the type leaves it open, the kind of its persistent memory."""

    storage_type: es.StorageType
    memkind: bool = False

    @property
    def name(self) -> str:
        return self.storage_type.name + ("-memkind" if self.memkind else "")

    @property
    def tiers(self) -> int:
        return len(TIER_KINDS[self.storage_type])

    def option(
        self,
        directory: Path,
        storage_size: Sequence[int],
        cache_strategy: es.CacheStrategy = es.CacheStrategy.LFU,
    ) -> es.StorageOption:
        """Returns the storage option: one size in bytes a tier; files are made in `directory`."""
        paths = [
            directory
            if kind in (TierKind.PMEM_LIBPMEM, TierKind.SSDHASH, TierKind.LEVELDB)
            or (kind is TierKind.PMEM and not self.memkind)
            else None
            for kind in TIER_KINDS[self.storage_type]
        ]
        option = es.StorageOption(self.storage_type, paths, storage_size, cache_strategy)
        for tier in option.tiers():
            _skip_without_library(tier.kind)
        return option


# Below HBM, testing one kind of persistent memory is enough.
_PMEM = [
    kind
    for kind in TIERED
    if TierKind.PMEM in TIER_KINDS[kind] and TierKind.HBM not in TIER_KINDS[kind]
]
STACKS = (*map(Stack, STORAGE_TYPES), *(Stack(kind, memkind=True) for kind in _PMEM))
TIERED_STACKS = tuple(stack for stack in STACKS if stack.tiers > 1)


def skip_without_library(storage_type: es.StorageType) -> None:
    for kind in TIER_KINDS[storage_type]:
        _skip_without_library(TierKind.PMEM_LIBPMEM if kind is TierKind.PMEM else kind)


def _skip_without_library(kind: TierKind) -> None:
    if kind in _LIBRARIES:
        library, package = _LIBRARIES[kind]
        try:
            ctypes.CDLL(library)
        except OSError:
            pytest.skip(f"{kind.value} needs {library}; apt-get install {package}")


def files_without_locks(directory: Path) -> list[Path]:
    """Returns all files in a storage_path except the lock files of its owners."""
    return sorted(path for path in directory.iterdir() if path.suffix != ".lock")


def on_device(values: Any, dtype: type[np.generic] = np.int64) -> es.DeviceArray:
    """Returns an array in the memory of the GPU that these tests use."""
    return es.DeviceArray(np.asarray(values, dtype), device=GPU)


def variable_with_options(
    name: str,
    dim: int,
    storage: es.StorageOption | None = None,
    *,
    init: es.InitializerOption | None = None,
    filter: es.CounterFilter | es.CBFFilter | None = None,
    evict: es.GlobalStepEvict | es.L2WeightEvict | None = None,
    **arguments: Any,
) -> es.EmbeddingVariable:
    """Returns a variable made from bare options, so that no test has to wrap them."""
    options: dict[str, Any] = {
        "storage_option": storage,
        "init_option": init,
        "filter_option": filter,
        "evict_option": evict,
    }
    given = {name: option for name, option in options.items() if option is not None}
    return es.get_embedding_variable(
        name, dim, ev_option=es.EmbeddingVariableOption(**given), **arguments
    )


def row_bytes(dim: int, optimizer: es.optimizers.Optimizer) -> int:
    return (1 + len(optimizer.slots)) * ((4 * dim + 15) // 16 * 16)


def capacities_of(option: es.StorageOption, row_size: int) -> list[int | None]:
    """Returns the number of rows that each tier may hold; None: unlimited."""
    return [
        None if tier.size_bytes is None else tier.size_bytes // row_size for tier in option.tiers()
    ]
