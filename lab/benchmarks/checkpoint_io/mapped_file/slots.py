"""An open file of slots: its header, the published slots, and the locks on slots."""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path
from typing import Final

from benchmarks.checkpoint_io.mapped_file.layout import (
    FILE_HEADER_BYTES,
    SLOTS,
    WORD,
    WORD_OFFSET,
    FileHeader,
    decode_generation,
)

__all__ = ["SlotFile"]

_SAVE_LOCK: Final = 1 << 62  # beyond every file's end, where locks are allowed too
_FLOCK: Final = struct.Struct("hhqqi4x")


class SlotFile:
    """An open file of slots. Its locks belong to the descriptor and its duplicates, until all are
    closed.

    Raises FileNotFoundError, OSError, DamagedCheckpointError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            raw = os.pread(self.descriptor, FILE_HEADER_BYTES, 0)
            self.header = FileHeader.decode(path, raw, os.fstat(self.descriptor).st_size)
        except BaseException:
            os.close(self.descriptor)
            raise

    def close(self) -> None:
        os.close(self.descriptor)

    def __enter__(self) -> SlotFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def generations(self) -> list[int | None]:
        """Returns each slot's generation; None for a slot without a complete checkpoint."""
        found = []
        for slot in range(SLOTS):
            offset = self.header.slot_offset(slot) + WORD_OFFSET
            (word,) = WORD.unpack(os.pread(self.descriptor, WORD.size, offset))
            found.append(decode_generation(self.path, slot, word))
        return found

    def newest(self) -> tuple[int, int] | None:
        """Returns the slot with the last complete checkpoint and its generation; None
        without one.
        """
        published = [(g, slot) for slot, g in enumerate(self.generations()) if g is not None]
        if not published:
            return None
        generation, slot = max(published)
        return slot, generation

    def lock_for_saving(self) -> bool:
        """Locks the file against other saves. Returns whether the lock was free."""
        return self._lock(fcntl.F_WRLCK, _SAVE_LOCK, 1)

    def has_its_name(self) -> bool:
        """Returns whether the path still names this file; a save may have replaced it."""
        try:
            return os.path.samestat(os.fstat(self.descriptor), self.path.stat())
        except FileNotFoundError:
            return False

    def lock_slot(self, slot: int, *, exclusive: bool) -> bool:
        """Locks a slot. Returns whether the lock was free."""
        kind = fcntl.F_WRLCK if exclusive else fcntl.F_RDLCK
        return self._lock(kind, self.header.slot_offset(slot), self.header.slot_bytes)

    def unlock_slot(self, slot: int) -> None:
        self._lock(fcntl.F_UNLCK, self.header.slot_offset(slot), self.header.slot_bytes)

    def _lock(self, kind: int, start: int, length: int) -> bool:
        request = _FLOCK.pack(kind, os.SEEK_SET, start, length, 0)
        try:
            fcntl.fcntl(self.descriptor, fcntl.F_OFD_SETLK, request)
        except (BlockingIOError, PermissionError):  # EAGAIN or EACCES: another holds it
            return False
        return True
