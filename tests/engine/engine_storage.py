"""The storage types that run here, and the types of the fixtures in conftest.py."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest

import embstore as es

RUNNABLE = (es.StorageType.DRAM, es.StorageType.PMEM_LIBPMEM, es.StorageType.PMEM_MEMKIND)

# What Debian and Ubuntu call the library that a storage type needs.
_LIBRARIES = {
    es.StorageType.PMEM_LIBPMEM: ("libpmem.so.1", "libpmem1"),
    es.StorageType.PMEM_MEMKIND: ("libmemkind.so.0", "libmemkind0"),
}

StorageOf = Callable[..., es.StorageOption]
MakeVariable = Callable[..., es.EmbeddingVariable]


def skip_without_library(storage_type: es.StorageType) -> None:
    if storage_type in _LIBRARIES:
        library, package = _LIBRARIES[storage_type]
        try:
            ctypes.CDLL(library)
        except OSError:
            pytest.skip(f"{storage_type.name} needs {library}; apt-get install {package}")
