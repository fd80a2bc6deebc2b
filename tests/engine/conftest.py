"""Variables on every storage type that this computer can run, and their closing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from engine_storage import RUNNABLE, MakeVariable, StorageOf, skip_without_library

import embstore as es

MIB = 1 << 20


@pytest.fixture(scope="session", autouse=True)
def _memkind_may_use_node_0() -> Iterator[None]:
    """memkind asks once a process, so this is set before the first variable is made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEMKIND_DAX_KMEM_NODES", "0")
        yield


@pytest.fixture(scope="session", params=RUNNABLE, ids=lambda storage_type: storage_type.name)
def storage_type(request: pytest.FixtureRequest) -> es.StorageType:
    skip_without_library(request.param)
    chosen: es.StorageType = request.param
    return chosen


@pytest.fixture(scope="session")
def storage_of(tmp_path_factory: pytest.TempPathFactory) -> StorageOf:
    """A storage option of a type, with a place of its own for files."""

    def make(storage_type: es.StorageType, size_bytes: int = MIB) -> es.StorageOption:
        path = tmp_path_factory.mktemp("pmem") if storage_type.name == "PMEM_LIBPMEM" else None
        return es.StorageOption(storage_type, storage_path=path, storage_size=[size_bytes])

    return make


@pytest.fixture
def make_variable() -> Iterator[MakeVariable]:
    """Makes variables as DeepRec's tests do: ones, Adagrad at 0.1; closes them in the end."""
    made: list[es.EmbeddingVariable] = []

    def make(
        *,
        dim: int = 3,
        storage: es.StorageOption | None = None,
        init: es.InitializerOption | None = None,
        **arguments: Any,
    ) -> es.EmbeddingVariable:
        arguments.setdefault("name", f"var_{len(made)}")
        arguments.setdefault("initializer", es.initializers.Ones())
        arguments.setdefault("optimizer", es.optimizers.Adagrad(0.1))
        options: dict[str, Any] = {"storage_option": storage, "init_option": init}
        made.append(
            es.get_embedding_variable(
                arguments.pop("name"),
                dim,
                ev_option=es.EmbeddingVariableOption(
                    **{name: option for name, option in options.items() if option is not None}
                ),
                **arguments,
            )
        )
        return made[-1]

    yield make
    for variable in made:
        variable.close()
