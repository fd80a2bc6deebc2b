"""The bytes of a mapped checkpoint: LAYOUT.md in code."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from benchmarks.checkpoint_io.errors import DamagedCheckpointError

__all__ = [
    "DATA_OFFSET",
    "DTYPES",
    "FILE_HEADER_BYTES",
    "SLOTS",
    "SLOT_HEADER",
    "TENSOR_ALIGNMENT",
    "WORD",
    "WORD_OFFSET",
    "FileHeader",
    "SlotHeader",
    "decode_generation",
    "encode_generation",
    "round_up",
]

SLOTS: Final = 2
PAGE: Final = 4096
VERSION: Final = 1
FILE_MAGIC: Final = b"PMLCKPT\0"
SLOT_MAGIC: Final = b"PMLSLOT\0"
FILE_HEADER_BYTES: Final = PAGE
WORD_OFFSET: Final = 512
DATA_OFFSET: Final = PAGE
TENSOR_ALIGNMENT: Final = 64
WORD: Final = struct.Struct("<Q")
_CHECKSUM: Final = struct.Struct("<I")
_FILE_HEADER: Final = struct.Struct("<8sIQ")
SLOT_HEADER: Final = struct.Struct("<8sIQQI")

DTYPES: Final = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    )
}


@dataclass(frozen=True)
class FileHeader:
    """The file's header. slot_bytes: size of each of the two slots."""

    slot_bytes: int

    @classmethod
    def for_content(cls, data_bytes: int, index_bytes: int) -> FileHeader:
        """Returns the header of a file whose slots have room for the content, and for an index that
        grows by digits of numbers and a few losses.
        """
        return cls(round_up(DATA_OFFSET + data_bytes + 2 * index_bytes + PAGE, PAGE))

    @property
    def file_bytes(self) -> int:
        return FILE_HEADER_BYTES + SLOTS * self.slot_bytes

    def slot_offset(self, slot: int) -> int:
        return FILE_HEADER_BYTES + slot * self.slot_bytes

    def encode(self) -> bytes:
        return _with_checksum(_FILE_HEADER.pack(FILE_MAGIC, VERSION, self.slot_bytes))

    @classmethod
    def decode(cls, path: Path, raw: bytes, file_bytes: int) -> FileHeader:
        """Parses and checks a header. file_bytes: the file's size. Raises
        DamagedCheckpointError.
        """
        if len(raw) < FILE_HEADER_BYTES:
            raise DamagedCheckpointError(path, f"truncated: {file_bytes} bytes, less than a header")
        magic, version, slot_bytes = _FILE_HEADER.unpack_from(raw)
        if magic != FILE_MAGIC:
            raise DamagedCheckpointError(path, f"no mapped checkpoint: it starts with {magic!r}")
        if not _checksum_holds(raw, _FILE_HEADER.size):
            raise DamagedCheckpointError(path, "the file header's checksum doesn't hold")
        if version != VERSION:
            raise DamagedCheckpointError(
                path, f"format version {version}; this program reads {VERSION}"
            )
        header = cls(slot_bytes)
        if file_bytes != header.file_bytes:
            kind = "truncated" if file_bytes < header.file_bytes else "too long"
            raise DamagedCheckpointError(
                path, f"{kind}: {file_bytes} bytes, its header says {header.file_bytes}"
            )
        return header


@dataclass(frozen=True)
class SlotHeader:
    """A slot's header. generation: number of the save. data_bytes, index_bytes: sizes of the two
    areas.
    """

    generation: int
    data_bytes: int
    index_bytes: int
    index_crc32: int

    def encode(self) -> bytes:
        fields = (self.generation, self.data_bytes, self.index_bytes, self.index_crc32)
        return _with_checksum(SLOT_HEADER.pack(SLOT_MAGIC, *fields))

    @classmethod
    def decode(cls, path: Path, slot: int, raw: bytes | memoryview) -> SlotHeader:
        """Parses and checks a slot's header. Raises DamagedCheckpointError."""
        magic, *fields = SLOT_HEADER.unpack_from(raw)
        if magic != SLOT_MAGIC or not _checksum_holds(raw, SLOT_HEADER.size):
            raise DamagedCheckpointError(path, f"the header of slot {slot} is damaged")
        return cls(*fields)


def encode_generation(generation: int) -> int:
    """Returns a slot's publishing word. Raises struct.error after 2^32 - 1 saves of a file."""
    return generation | zlib.crc32(_CHECKSUM.pack(generation)) << 32


def decode_generation(path: Path, slot: int, word: int) -> int | None:
    """Parses a publishing word; None if the slot has no complete checkpoint. Raises
    DamagedCheckpointError.
    """
    if word == 0:
        return None
    generation = word & 0xFFFF_FFFF
    if word != encode_generation(generation) or generation == 0:
        raise DamagedCheckpointError(path, f"the publishing word of slot {slot} is damaged")
    return generation


def round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _with_checksum(raw: bytes) -> bytes:
    return raw + _CHECKSUM.pack(zlib.crc32(raw))


def _checksum_holds(raw: bytes | memoryview, length: int) -> bool:
    (checksum,) = _CHECKSUM.unpack_from(raw, length)
    return bool(checksum == zlib.crc32(raw[:length]))
