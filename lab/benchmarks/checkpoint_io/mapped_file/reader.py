"""Loads from a mapped file without a copy: the tensors lie in the mapping."""

from __future__ import annotations

import mmap
import os
import zlib
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.checkpoint_io.checkpoint import Checkpoint
from benchmarks.checkpoint_io.errors import DamagedCheckpointError, NoCheckpointError
from benchmarks.checkpoint_io.mapped_file.index import Index, TensorEntry
from benchmarks.checkpoint_io.mapped_file.layout import DATA_OFFSET, DTYPES, SlotHeader
from benchmarks.checkpoint_io.mapped_file.slots import SlotFile
from benchmarks.checkpoint_io.phases import PhaseClock

__all__ = ["load", "newest_extent"]


def load(path: Path, clock: PhaseClock) -> Checkpoint:
    """Return the last complete checkpoint; its tensors are in a private mapping of the file.

    Writes to a tensor stay in this process. While any of the tensors lives, no save overwrites
    their slot: the second save from now on raises CheckpointInUseError.

    Raises NoCheckpointError, and DamagedCheckpointError, which names the file and the problem.
    """
    with clock("read"):
        try:
            file = SlotFile(path)
        except FileNotFoundError as error:
            raise NoCheckpointError(path) from error
        with file:
            slot, generation = _locked_newest(file)
            # mmap duplicates the descriptor, so the slot's lock lives as long as the mapping.
            mapping = mmap.mmap(
                file.descriptor,
                file.header.slot_bytes,
                flags=mmap.MAP_PRIVATE,
                prot=mmap.PROT_READ | mmap.PROT_WRITE,
                offset=file.header.slot_offset(slot),
            )
        header = SlotHeader.decode(path, slot, memoryview(mapping)[:DATA_OFFSET])
        if header.generation != generation:
            raise DamagedCheckpointError(
                path, f"slot {slot} is published as save {generation}, and is {header.generation}"
            )
        index = _index(path, header, mapping)
        tensors = {entry.name: _tensor(mapping, entry) for entry in index.tensors}
    with clock("verify"):
        _verify(path, mapping, index)
    return Checkpoint(tensors, index.scalars)


def newest_extent(path: Path) -> tuple[int, int]:
    """Returns the offset and length, in bytes, of the last complete checkpoint in the file.

    Raises NoCheckpointError, DamagedCheckpointError.
    """
    try:
        file = SlotFile(path)
    except FileNotFoundError as error:
        raise NoCheckpointError(path) from error
    with file:
        newest = file.newest()
        if newest is None:
            raise NoCheckpointError(path)
        slot, _ = newest
        offset = file.header.slot_offset(slot)
        header = SlotHeader.decode(path, slot, os.pread(file.descriptor, DATA_OFFSET, offset))
    return offset, DATA_OFFSET + header.data_bytes + header.index_bytes


def _locked_newest(file: SlotFile) -> tuple[int, int]:
    """Returns the slot with the last complete checkpoint, locked against saves, and its
    generation.
    """
    while True:
        newest = file.newest()
        if newest is None:
            raise NoCheckpointError(file.path)
        # Before the lock, one save may have published the other slot and the next begun on this
        # slot.
        if file.lock_slot(newest[0], exclusive=False):
            if file.newest() == newest:
                return newest
            file.unlock_slot(newest[0])


def _index(path: Path, header: SlotHeader, mapping: mmap.mmap) -> Index:
    start = DATA_OFFSET + header.data_bytes
    end = start + header.index_bytes
    if end > len(mapping):
        raise DamagedCheckpointError(path, "its slot header speaks of more bytes than a slot has")
    raw = mapping[start:end]
    if zlib.crc32(raw) != header.index_crc32:
        raise DamagedCheckpointError(path, "the index's checksum doesn't hold")
    return Index.decode(path, raw, header.data_bytes)


def _tensor(mapping: mmap.mmap, entry: TensorEntry) -> Tensor:
    dtype = DTYPES[entry.dtype]
    if entry.bytes == 0:
        return torch.empty(entry.shape, dtype=dtype)
    flat = torch.frombuffer(
        mapping,
        dtype=dtype,
        count=entry.bytes // dtype.itemsize,
        offset=DATA_OFFSET + entry.offset,
    )
    return flat.reshape(entry.shape)


def _verify(path: Path, mapping: mmap.mmap, index: Index) -> None:
    whole = memoryview(mapping)
    for entry in index.tensors:
        start = DATA_OFFSET + entry.offset
        if zlib.crc32(whole[start : start + entry.bytes]) != entry.crc32:
            raise DamagedCheckpointError(path, f"the checksum of tensor {entry.name} doesn't hold")
