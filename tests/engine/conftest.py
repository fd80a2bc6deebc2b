"""Fixtures: variables on every storage type that this computer can run, closed at the end."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_storage import (
    GPU,
    IN_MEMORY,
    MIB,
    STACKS,
    STORAGE_TYPES,
    TIERED_STACKS,
    MakeVariable,
    Stack,
    StorageOf,
    skip_without_library,
    variable_with_options,
)

import embstore as es
from embstore.gpu.choice import VARIABLE


@pytest.fixture(scope="session", autouse=True)
def _memkind_may_use_node_0() -> Iterator[None]:
    """Lets memkind use node 0. memkind reads the setting once a process, so it is set first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEMKIND_DAX_KMEM_NODES", "0")
        yield


@pytest.fixture(scope="session", autouse=True)
def _hbm_is_on_the_gpu_of_the_tests() -> Iterator[None]:
    """Puts HBM on the emulated GPU, unless the environment asks for another."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, GPU)
        yield


@contextlib.contextmanager
def folder_in_memory() -> Iterator[Path | None]:
    if IN_MEMORY is None:
        yield None
        return
    folder = Path(tempfile.mkdtemp(dir=IN_MEMORY, prefix="embstore-test-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Yields a folder in memory if there is room, else one on disk."""
    with folder_in_memory() as folder:
        yield folder or tmp_path


@pytest.fixture(scope="session", params=STORAGE_TYPES, ids=lambda storage_type: storage_type.name)
def storage_type(request: pytest.FixtureRequest) -> es.StorageType:
    skip_without_library(request.param)
    chosen: es.StorageType = request.param
    return chosen


@pytest.fixture(scope="session", params=STACKS, ids=lambda stack: stack.name)
def stack(request: pytest.FixtureRequest) -> Stack:
    chosen: Stack = request.param
    return chosen


@pytest.fixture(scope="session", params=TIERED_STACKS, ids=lambda stack: stack.name)
def tiered_stack(request: pytest.FixtureRequest) -> Stack:
    chosen: Stack = request.param
    return chosen


@pytest.fixture(scope="session")
def storage_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StorageOf]:
    """Yields a function that makes a storage option of a storage type or a stack, with its own
    folder for files.

    size_bytes: the total of all tiers. upper_bytes: each tier but the last (default: a quarter of
    size_bytes).
    """

    def make(
        storage: es.StorageType | Stack,
        size_bytes: int = MIB,
        *,
        upper_bytes: int | None = None,
        cache_strategy: es.CacheStrategy = es.CacheStrategy.LFU,
    ) -> es.StorageOption:
        stack = storage if isinstance(storage, Stack) else Stack(storage)
        upper = [size_bytes // 4 if upper_bytes is None else upper_bytes] * (stack.tiers - 1)
        directory = Path(tempfile.mkdtemp(dir=everything))
        return stack.option(directory, [*upper, size_bytes - sum(upper)], cache_strategy)

    with folder_in_memory() as folder:
        # Not a folder of tmp_path_factory each: to find a free name, pytest lists all folders
        # beside it.
        everything = folder or tmp_path_factory.mktemp("rows")
        yield make


@pytest.fixture
def make_variable() -> Iterator[MakeVariable]:
    """Yields a function that makes variables like those of DeepRec's tests (initial ones, Adagrad
    at 0.1). Closes them at the end."""
    variables: list[es.EmbeddingVariable] = []

    def make(*, dim: int = 3, **arguments: Any) -> es.EmbeddingVariable:
        arguments.setdefault("name", f"var_{len(variables)}")
        arguments.setdefault("initializer", es.initializers.Ones())
        arguments.setdefault("optimizer", es.optimizers.Adagrad(0.1))
        variables.append(variable_with_options(dim=dim, **arguments))
        return variables[-1]

    yield make
    for variable in variables:
        variable.close()
