"""The project's own format, in mapped persistent memory."""

from __future__ import annotations

from pathlib import Path

from benchmarks.checkpoint_io import mapped_file
from benchmarks.checkpoint_io.checkpoint import Checkpoint
from benchmarks.checkpoint_io.formats.format import Format
from benchmarks.checkpoint_io.page_cache import FilePart
from benchmarks.checkpoint_io.phases import PhaseClock

__all__ = ["MappedFile"]


class MappedFile(Format):
    file_name = "checkpoint.mapped"
    notices_flipped_bits = True
    reads_per_byte = 2  # for the checksums, then when the mapped tensors are touched

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._report: mapped_file.SaveReport | None = None

    def save(self, content: Checkpoint, clock: PhaseClock) -> None:
        self._report = mapped_file.save(self._path, content, clock)

    def load(self, clock: PhaseClock) -> Checkpoint:
        return mapped_file.load(self._path, clock)

    def parts(self) -> list[FilePart]:
        offset, length = mapped_file.newest_extent(self._path)
        return [FilePart(self._path, offset, length)]

    def notes(self) -> dict[str, object]:
        if self._report is None:
            return {}
        return {"is_pmem": self._report.is_pmem, "sync_call": self._report.sync_call}
