"""Rows in a file system in memory: they have room there, or an error says so."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engine_storage import skip_without_library, variable_with_options
from programs import run_program

import embstore as es
from embstore.errors import StoreFullError

MOUNTED_BYTES = 8 << 20
MountMemory = Callable[[str], Path]


@pytest.fixture
def mount_memory(tmp_path: Path) -> Iterator[MountMemory]:
    """Yields a function that mounts a tmpfs of a size, as `mount` takes it."""
    skip_without_library(es.StorageType.PMEM_LIBPMEM)
    place = tmp_path / "memory"
    place.mkdir()

    def mount(size: str) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("mounts a tmpfs, which takes root")
        return place

    yield mount
    subprocess.run(["umount", str(place)], check=False, capture_output=True)


def make(
    kind: es.StorageType, place: Path, size: list[int] | None = None, durability: str | None = None
) -> es.EmbeddingVariable:
    storage = es.StorageOption(kind, storage_path=place, storage_size=size, durability=durability)
    return variable_with_options("users", 16, storage)


@pytest.mark.parametrize(
    ("kind", "durability"),
    [
        (es.StorageType.PMEM_LIBPMEM, None),
        (es.StorageType.DRAM_PMEM, None),
        (es.StorageType.DRAM_PMEM, "checkpoint"),
    ],
)
def test_without_storage_size_a_small_file_system_has_no_room_and_the_error_says_what_to_give(
    mount_memory: MountMemory, kind: es.StorageType, durability: str | None
) -> None:
    place = mount_memory(str(MOUNTED_BYTES))
    with pytest.raises(StoreFullError) as refused:
        make(kind, place, durability=durability)
    message = str(refused.value)
    assert message.startswith(f"storage_path: {place}/users")
    assert f"has {MOUNTED_BYTES} left" in message
    assert "give a storage_size that fits" in message
    assert sum(file.stat().st_blocks for file in place.rglob("*") if file.is_file()) == 0


def test_a_table_that_fits_is_made_and_the_next_has_the_room_that_is_left(
    mount_memory: MountMemory,
) -> None:
    place = mount_memory(str(MOUNTED_BYTES))
    half = [MOUNTED_BYTES // 2]
    with make(es.StorageType.PMEM_LIBPMEM, place, half) as variable:
        used = sum(file.stat().st_blocks * 512 for file in place.iterdir())
        storage = es.StorageOption(es.StorageType.PMEM_LIBPMEM, place, half)
        with pytest.raises(StoreFullError, match=f"has {MOUNTED_BYTES - used} left"):
            variable_with_options("items", 16, storage)
        assert variable.lookup([1]).shape == (1, 16)
    with make(es.StorageType.PMEM_LIBPMEM, place, half):
        pass


def test_a_pool_that_grows_takes_only_the_bytes_that_it_lacks(mount_memory: MountMemory) -> None:
    place = mount_memory(str(MOUNTED_BYTES))
    size = [1 << 16, 5 << 20]
    with make(es.StorageType.DRAM_PMEM, place, size, "checkpoint"):
        pass
    with make(es.StorageType.DRAM_PMEM, place, [1 << 16, 6 << 20], "checkpoint"):
        pass
    with pytest.raises(StoreFullError, match="users"):
        make(es.StorageType.DRAM_PMEM, place, [1 << 16, 20 << 20], "checkpoint")
    with make(es.StorageType.DRAM_PMEM, place, [1 << 16, 6 << 20], "checkpoint"):
        pass


def test_more_memory_than_the_computer_has_is_refused_though_the_file_system_promises_it(
    mount_memory: MountMemory,
) -> None:
    """Runs in a process whose files may not grow, so that a wrong engine takes no memory either."""
    place = mount_memory("64t")
    program = """
import resource, sys
import embstore as es

resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
with open("/proc/meminfo") as lines:
    total = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:"))
storage = es.StorageOption(es.StorageType.PMEM_LIBPMEM, sys.argv[1], [2 * total])
try:
    es.get_embedding_variable(
        "users", 1024, ev_option=es.EmbeddingVariableOption(storage_option=storage))
except es.errors.StoreFullError as error:
    print(error)
"""
    ended = run_program(program, place)
    assert ended.returncode == 0, ended.stderr
    assert "the computer's memory, where it would lie, has" in ended.stdout
