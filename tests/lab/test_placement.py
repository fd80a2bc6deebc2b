"""The NUMA nodes and backing files of memory, read for memory of this process."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

import pytest

from pmemlab.placement import ProcessMemory, unmap_pages_of


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def test_touched_pages_are_counted_and_others_are_not() -> None:
    memory = mmap.mmap(-1, 64 * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # The mapping is smaller than a huge page, so touching some pages doesn't fill in the others.
    for page in range(10):
        memory[page * mmap.PAGESIZE] = 1
    nodes = ProcessMemory().page_nodes(_address(memory), len(memory))
    assert sum(nodes.values()) == 10
    assert all(node >= 0 for node in nodes)


def test_a_range_within_pages_counts_each_page_it_touches() -> None:
    memory = mmap.mmap(-1, 4 * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(b"x" * len(memory))
    nodes = ProcessMemory().page_nodes(_address(memory) + mmap.PAGESIZE - 1, 2)
    assert sum(nodes.values()) == 2


def test_a_mapped_file_is_named_and_anonymous_memory_has_no_file(tmp_path: Path) -> None:
    path = tmp_path / "a file with spaces"
    path.write_bytes(b"x" * mmap.PAGESIZE)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), mmap.PAGESIZE) as mapping:
        view = ctypes.c_char.from_buffer(mapping)
        assert ProcessMemory().backing_file(ctypes.addressof(view) + 100) == str(path)
        del view
    memory = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    assert ProcessMemory().backing_file(_address(memory)) is None


def test_an_address_that_is_not_mapped_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing is mapped there"):
        ProcessMemory().backing_file(1)


@pytest.mark.parametrize(("address", "length"), [(0, 10), (4096, 0), (-1, 1)])
def test_an_empty_range_is_refused(address: int, length: int) -> None:
    with pytest.raises(ValueError, match="must both be above 0"):
        ProcessMemory().page_nodes(address, length)


def test_unmapped_pages_of_a_file_leave_the_page_tables_and_come_back_when_read(
    tmp_path: Path,
) -> None:
    (tmp_path / "inside").mkdir()
    file = tmp_path / "inside" / "rows"
    file.write_bytes(b"row" * 4096)
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as mapping:
        assert mapping[:3] == b"row"
        assert resident_bytes(file) > 0
        unmap_pages_of(tmp_path / "inside")
        assert resident_bytes(file) == 0
        assert mapping[:3] == b"row"


def resident_bytes(file: Path) -> int:
    """Returns the resident bytes of this process's mapping of the file, from smaps."""
    text = Path("/proc/self/smaps").read_text()
    _, found, after = text.partition(f" {file}\n")
    assert found
    return int(after.split("Rss:", 1)[1].split()[0]) << 10


def test_a_large_sparse_mapping_is_counted_quickly() -> None:
    size = 4 << 30
    no_reserve = 0x4000  # asm-generic/mman.h
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    for at in (0, size // 2, size - 1):
        memory[at] = 1
    assert sum(ProcessMemory().page_nodes(_address(memory), size).values()) == 3


def test_unreadable_pages_are_left_out_and_adjacent_ranges_are_merged() -> None:
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 8 * page, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for at in range(8):
        memory[at * page] = 1
    memory.madvise(mmap.MADV_DONTFORK, 0, 2 * page)  # splits the mapping into two
    first = _address(memory)
    libc = ctypes.CDLL(None, use_errno=True)
    unreadable = ctypes.c_void_p(first + 4 * page)
    assert libc.mprotect(unreadable, ctypes.c_size_t(2 * page), 0) == 0
    try:
        found = list(ProcessMemory().present_ranges(first, 8 * page))
    finally:
        libc.mprotect(unreadable, ctypes.c_size_t(2 * page), 3)
    assert found == [(first, first + 4 * page), (first + 6 * page, first + 8 * page)]
