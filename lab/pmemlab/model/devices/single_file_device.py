"""The common base of memories, disks and GPUs: a device with a file of its own figures."""

from __future__ import annotations

from pmemlab.errors import NotPublishedError
from pmemlab.model.devices.device_file import DeviceFile
from pmemlab.model.devices.model import DeviceModel, EngineConcurrency

__all__ = ["SingleFileDevice"]


class SingleFileDevice(DeviceModel):
    """A device all of whose figures are in one file, `file`."""

    def __init__(self, file: DeviceFile, concurrency: EngineConcurrency) -> None:
        self.name = file.name
        self.title = file.title
        self.kind = file.kind
        self.capacity_bytes = file.capacity_bytes
        self.media_line_bytes = file.media_line_bytes
        self.notes = file.notes
        self.sources = file.sources
        self.file = file
        self._concurrency = concurrency

    def _unpublished(self, operation: str, pattern: str) -> NotPublishedError:
        return NotPublishedError(f"{self.name}: no {pattern} {operation} in {self.file.path}")

    def latency_ns(self, operation: str, pattern: str) -> float:
        if (operation, pattern) in self.file.idle_latency:
            return self.file.idle_latency[operation, pattern]
        raise NotPublishedError(
            f"{self.name}: no idle latency of a {pattern} {operation} in {self.file.path}"
        )
