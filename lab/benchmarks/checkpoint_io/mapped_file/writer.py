"""Saves into a mapped file, by the steps of LAYOUT.md's "Saving"."""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from benchmarks.checkpoint_io.checkpoint import Checkpoint
from benchmarks.checkpoint_io.errors import CheckpointInUseError
from benchmarks.checkpoint_io.libpmem import PersistentMapping, mapped_file
from benchmarks.checkpoint_io.mapped_file.index import Index
from benchmarks.checkpoint_io.mapped_file.layout import (
    DATA_OFFSET,
    WORD_OFFSET,
    FileHeader,
    SlotHeader,
    encode_generation,
)
from benchmarks.checkpoint_io.mapped_file.slots import SlotFile
from benchmarks.checkpoint_io.phases import PhaseClock
from benchmarks.checkpoint_io.publishing import publish, unfinished_file

__all__ = ["SaveReport", "save"]


@dataclass(frozen=True)
class SaveReport:
    """The result of a save. generation: the save's number. is_pmem: libpmem's answer for the file.
    sync_call: the call that made the tensors durable.
    """

    generation: int
    is_pmem: bool
    sync_call: str


@dataclass(frozen=True)
class _Content:
    """The content of a slot. tensors: contiguous."""

    tensors: list[Tensor]
    index: Index
    raw_index: bytes

    @classmethod
    def lay_out(cls, checkpoint: Checkpoint) -> _Content:
        tensors = {name: tensor.contiguous() for name, tensor in checkpoint.tensors.items()}
        index = Index.lay_out(tensors, checkpoint.scalars)
        return cls(list(tensors.values()), index, index.encode())

    @property
    def slot_bytes(self) -> int:
        return DATA_OFFSET + self.index.data_bytes + len(self.raw_index)


def save(path: Path, checkpoint: Checkpoint, clock: PhaseClock) -> SaveReport:
    """Save a checkpoint; a failure at any moment leaves the previous checkpoint.

    The file takes twice the checkpoint's size. The first save makes the file, and a save that needs
    larger slots replaces it.

    Raises CheckpointInUseError while another save writes the file, or while tensors that were
    loaded before the last save still lie in the slot to be written; DamagedCheckpointError if the
    file is damaged; OSError if there is no room; MissingRequirementError without libpmem.
    """
    with clock("serialise"):
        content = _Content.lay_out(checkpoint)
    try:
        file = SlotFile(path)
    except FileNotFoundError:
        return _save_in_new_file(path, content, 1, clock)
    with file:
        if not (file.lock_for_saving() and file.has_its_name()):
            raise CheckpointInUseError(f"{path}: another save is writing this checkpoint")
        newest = file.newest()
        slot = 1 - newest[0] if newest else 0
        generation = newest[1] + 1 if newest else 1
        if content.slot_bytes > file.header.slot_bytes:
            return _save_in_new_file(path, content, generation, clock)
        if not file.lock_slot(slot, exclusive=True):
            raise CheckpointInUseError(
                f"{path}: tensors that were loaded from slot {slot} are still in use there; copy "
                "or release them before the second save that follows their load"
            )
        with mapped_file(path) as mapping:
            _fill(mapping, file.header, slot, content, generation, clock)
            return SaveReport(generation, mapping.is_pmem, mapping.sync_call)


def _save_in_new_file(
    path: Path, content: _Content, generation: int, clock: PhaseClock
) -> SaveReport:
    header = FileHeader.for_content(content.index.data_bytes, len(content.raw_index))
    with unfinished_file(path) as (descriptor, unfinished):
        with clock("sync"):
            os.posix_fallocate(descriptor, 0, header.file_bytes)
            os.pwrite(descriptor, header.encode(), 0)
        with mapped_file(unfinished) as mapping:
            _fill(mapping, header, 0, content, generation, clock)
            report = SaveReport(generation, mapping.is_pmem, mapping.sync_call)
        with clock("sync"):
            os.fsync(descriptor)
            publish(unfinished, path)
    return report


def _fill(
    mapping: PersistentMapping,
    header: FileHeader,
    slot: int,
    content: _Content,
    generation: int,
    clock: PhaseClock,
) -> None:
    start = header.slot_offset(slot)
    index = content.index
    slot_header = SlotHeader(
        generation, index.data_bytes, len(content.raw_index), zlib.crc32(content.raw_index)
    )
    with clock("sync"):
        mapping.store_word(start + WORD_OFFSET, 0)
    with clock("copy"):
        for entry, tensor in zip(index.tensors, content.tensors, strict=True):
            mapping.copy(start + DATA_OFFSET + entry.offset, tensor.data_ptr(), entry.bytes)
        mapping.copy_bytes(start + DATA_OFFSET + index.data_bytes, content.raw_index)
        mapping.copy_bytes(start, slot_header.encode())
    with clock("sync"):
        mapping.drain(start, content.slot_bytes)
        mapping.store_word(start + WORD_OFFSET, encode_generation(generation))
