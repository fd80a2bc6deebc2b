"""The formats that turn a checkpoint into bytes on a medium, and back into tensors."""

from __future__ import annotations

from typing import Final

from benchmarks.checkpoint_io.formats.embstore_table import EmbstoreTable
from benchmarks.checkpoint_io.formats.format import Format
from benchmarks.checkpoint_io.formats.mapped import MappedFile
from benchmarks.checkpoint_io.formats.safetensors_file import SafetensorsFile
from benchmarks.checkpoint_io.formats.torch_file import MappedTorchFile, TorchFile

__all__ = ["FILE_FORMATS", "FORMATS", "MAPPED_FORMATS", "Format"]

FILE_FORMATS: Final[dict[str, type[Format]]] = {
    "torch": TorchFile,
    "torch-mmap": MappedTorchFile,
    "safetensors": SafetensorsFile,
    "embstore": EmbstoreTable,
}
"""Formats that write through the file system."""

MAPPED_FORMATS: Final[dict[str, type[Format]]] = {"mapped": MappedFile}
"""Formats that store into mapped memory."""

FORMATS: Final = {**FILE_FORMATS, **MAPPED_FORMATS}
