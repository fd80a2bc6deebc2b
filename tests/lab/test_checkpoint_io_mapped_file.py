"""The bytes of the mapped checkpoint format, and its locks and publishing order."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from checkpoints import flip_bit, need_libpmem, step_of, uniform_checkpoint

from benchmarks.checkpoint_io import mapped_file
from benchmarks.checkpoint_io.checkpoint import Checkpoint, check_same_bits
from benchmarks.checkpoint_io.errors import CheckpointInUseError, DamagedCheckpointError
from benchmarks.checkpoint_io.libpmem import PersistentMapping
from benchmarks.checkpoint_io.mapped_file.slots import SlotFile
from benchmarks.checkpoint_io.phases import PhaseClock

HEADER, WORD_AT, DATA_AT = 4096, 512, 4096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    need_libpmem()
    return tmp_path / "kept.mapped"


def save(path: Path, step: int, tensors: int = 2) -> mapped_file.SaveReport:
    return mapped_file.save(path, uniform_checkpoint(step, tensors, 100), PhaseClock())


def load(path: Path) -> Checkpoint:
    return mapped_file.load(path, PhaseClock())


def slot_bytes(path: Path) -> int:
    return (path.stat().st_size - HEADER) // 2


def test_the_file_has_the_documented_layout(path: Path) -> None:
    """Reads the file by LAYOUT.md alone, without the format's own code."""
    for step in (1, 2, 3):
        assert save(path, step).generation == step
    raw = path.read_bytes()
    magic, version, size, checksum = struct.unpack_from("<8sIQI", raw)
    assert (magic, version, checksum) == (b"PMLCKPT\0", 1, zlib.crc32(raw[:20]))
    assert len(raw) == 4096 + 2 * size
    for slot, generation in ((0, 3), (1, 2)):
        of_slot = raw[4096 + slot * size :][:size]
        found = struct.unpack_from("<8sIQQII", of_slot)
        magic, number, data_bytes, index_bytes, index_crc, checksum = found
        assert (magic, number, checksum) == (b"PMLSLOT\0", generation, zlib.crc32(of_slot[:32]))
        word = struct.pack("<II", generation, zlib.crc32(struct.pack("<I", generation)))
        assert of_slot[512:520] == word
        index = of_slot[4096 + data_bytes :][:index_bytes]
        assert index_crc == zlib.crc32(index)
        assert f'"step": {generation}'.encode() in index
        floats = struct.unpack_from("<100f", of_slot, 4096)
        assert set(floats) == {float(generation)}
        assert struct.unpack_from("<100f", of_slot, 4096 + 448) == floats  # 400 bytes, padded to 64


def test_every_bit_of_header_publishing_word_and_index_is_guarded(path: Path) -> None:
    save(path, 1)
    raw = path.read_bytes()
    slot = raw[HEADER:]
    data_bytes, index_bytes = struct.unpack_from("<QQ", slot, 12)
    index_at = HEADER + DATA_AT + data_bytes
    described = [
        *range(24),
        *range(HEADER, HEADER + 36),
        *range(HEADER + WORD_AT, HEADER + WORD_AT + 8),
        *range(index_at, index_at + index_bytes),
    ]
    for offset in described:
        flip_bit(path, offset, offset % 8)
        with pytest.raises(DamagedCheckpointError, match=str(path)):
            load(path)
        flip_bit(path, offset, offset % 8)
    assert step_of(load(path)) == 1


def test_a_flipped_bit_in_a_tensor_is_an_error_that_names_the_tensor(path: Path) -> None:
    save(path, 1)
    flip_bit(path, HEADER + DATA_AT + 448 + 12)
    with pytest.raises(DamagedCheckpointError, match="checksum of tensor tensor 1 doesn't hold"):
        load(path)


def test_damage_to_the_newest_save_never_brings_an_older_one_back(path: Path) -> None:
    save(path, 1)
    save(path, 2)
    second = HEADER + slot_bytes(path)
    for offset in (second, second + WORD_AT, second + DATA_AT):
        flip_bit(path, offset)
        with pytest.raises(DamagedCheckpointError):
            load(path)
        flip_bit(path, offset)
    assert step_of(load(path)) == 2


def test_a_save_into_a_damaged_file_leaves_it_alone(path: Path) -> None:
    save(path, 1)
    flip_bit(path, HEADER + WORD_AT)
    before = path.read_bytes()
    with pytest.raises(DamagedCheckpointError, match="publishing word of slot 0"):
        save(path, 2)
    assert path.read_bytes() == before


def with_version_2(raw: bytes) -> bytes:
    header = struct.pack("<8sIQ", b"PMLCKPT\0", 2, (len(raw) - HEADER) // 2)
    header += struct.pack("<I", zlib.crc32(header))
    return header + raw[len(header) :]


@pytest.mark.parametrize(
    ("damaged", "complaint"),
    [
        (lambda _: b"", "truncated: 0 bytes"),
        (lambda _: b"PMLCKPT\0" + bytes(100), "truncated: 108 bytes"),
        (lambda _: b"another format" + bytes(9000), "no mapped checkpoint"),
        (with_version_2, "format version 2"),
        (lambda raw: raw + b"x", "too long"),
    ],
)
def test_a_file_that_is_no_whole_mapped_checkpoint_of_this_version_is_refused(
    path: Path, damaged: Callable[[bytes], bytes], complaint: str
) -> None:
    save(path, 1)
    path.write_bytes(damaged(path.read_bytes()))
    with pytest.raises(DamagedCheckpointError, match=complaint):
        load(path)


def test_a_larger_checkpoint_gets_a_larger_file_and_the_next_number(path: Path) -> None:
    save(path, 1)
    small = path.stat().st_size
    report = mapped_file.save(path, uniform_checkpoint(2, 2, 10_000), PhaseClock())
    assert report.generation == 2
    assert path.stat().st_size > small
    assert step_of(load(path)) == 2
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_tensors_lie_in_the_mapping_and_not_in_copies(path: Path) -> None:
    save(path, 1)
    loaded = load(path)
    first, second = loaded.tensors.values()
    assert second.data_ptr() - first.data_ptr() == 448
    maps = Path("/proc/self/maps").read_text().splitlines()
    (line,) = [line for line in maps if line.endswith(str(path))]
    bounds, permissions = line.split()[:2]
    start, end = (int(bound, 16) for bound in bounds.split("-"))
    assert start <= first.data_ptr() < end
    assert permissions == "rw-p"


def test_only_one_save_writes_a_file_at_a_time(path: Path) -> None:
    save(path, 1)
    with SlotFile(path) as other:
        assert other.lock_for_saving()
        with pytest.raises(CheckpointInUseError, match="another save"):
            save(path, 2)
    save(path, 2)


def test_an_open_file_notices_that_it_was_replaced(path: Path) -> None:
    save(path, 1)
    with SlotFile(path) as file:
        assert file.has_its_name()
        mapped_file.save(path, uniform_checkpoint(2, 2, 10_000), PhaseClock())
        assert not file.has_its_name()


def test_a_slot_that_another_process_uses_is_not_overwritten(path: Path) -> None:
    """The lock is a kernel lock, which holds between processes."""
    save(path, 1)
    locked, lock = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            assert SlotFile(path).lock_slot(0, exclusive=False)
            os.write(lock, b"locked")
            signal.pause()
        finally:
            os._exit(1)
    try:
        assert os.read(locked, 6) == b"locked"
        save(path, 2)
        with pytest.raises(CheckpointInUseError, match="slot 0"):
            save(path, 3)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    save(path, 3)


def test_nothing_is_published_before_everything_is_durable(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(path, 1)
    steps: list[str] = []
    word, drain, copy = (
        PersistentMapping.store_word,
        PersistentMapping.drain,
        PersistentMapping.copy,
    )
    drained: list[tuple[int, int]] = []
    copied: list[tuple[int, int]] = []

    def store_word(self: PersistentMapping, offset: int, value: int) -> None:
        steps.append("publish" if value else "unpublish")
        word(self, offset, value)

    def observed_drain(self: PersistentMapping, offset: int, length: int) -> None:
        steps.append("drain")
        drained.append((offset, offset + length))
        drain(self, offset, length)

    def observed_copy(self: PersistentMapping, offset: int, source: int, length: int) -> None:
        copied.append((offset, offset + length))
        steps.append("copy")
        copy(self, offset, source, length)

    monkeypatch.setattr(PersistentMapping, "store_word", store_word)
    monkeypatch.setattr(PersistentMapping, "drain", observed_drain)
    monkeypatch.setattr(PersistentMapping, "copy", observed_copy)
    save(path, 2)
    # Four copies: two tensors, the index and the slot's header. One drain covers them all.
    assert steps == ["unpublish", "copy", "copy", "copy", "copy", "drain", "publish"]
    ((first, last),) = drained
    assert all(first <= start and end <= last for start, end in copied)


def test_an_ordinary_file_is_synced_by_msync_and_says_so(path: Path) -> None:
    report = save(path, 1)
    assert not report.is_pmem
    assert report.sync_call == "pmem_msync"


def test_a_lie_about_persistent_memory_is_found_out(path: Path) -> None:
    """libpmem trusts PMEM_IS_PMEM_FORCE, although the kernel can't map the file with MAP_SYNC."""
    path.write_bytes(bytes(8192))
    program = (
        "import sys\nfrom pathlib import Path\n"
        "from benchmarks.checkpoint_io.libpmem import mapped_file\n"
        "with mapped_file(Path(sys.argv[1])): pass"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        env={**os.environ, "PMEM_IS_PMEM_FORCE": "1"},
        capture_output=True,
        text=True,
    )
    assert "unset PMEM_IS_PMEM_FORCE" in answer.stderr


def test_copies_outside_of_the_file_are_refused(path: Path) -> None:
    mapping = PersistentMapping(path, address=1 << 20, length=100, is_pmem=False)
    with pytest.raises(ValueError, match="8 bytes at 96 aren't within its 100"):
        mapping.copy(96, 1 << 20, 8)
    with pytest.raises(ValueError, match="no multiple of 8"):
        mapping.store_word(4, 1)


def test_tensors_of_a_dtype_that_the_format_lacks_are_refused_by_name(path: Path) -> None:
    complex_numbers = Checkpoint({"phases": torch.zeros(2, dtype=torch.complex64)})
    with pytest.raises(ValueError, match=r"phases: tensors of torch\.complex64"):
        mapped_file.save(path, complex_numbers, PhaseClock())
    assert not path.exists()


def test_a_checkpoint_without_tensors_can_be_saved_and_loaded(path: Path) -> None:
    empty = Checkpoint({}, {"step": 0})
    mapped_file.save(path, empty, PhaseClock())
    check_same_bits(load(path), empty)
