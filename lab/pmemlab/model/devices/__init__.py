"""Devices that tables can lie on: their published figures, and the times of accesses.

    device = load_device("optane-100-x6")
    device.time_ns(Access.LOAD, size_bytes=256, threads=4)  # per row, while four threads read

Each device is a YAML file that gives every figure with its source.
"""

from __future__ import annotations

from pmemlab.model.devices.device_file import Source
from pmemlab.model.devices.loading import device_names, load_device
from pmemlab.model.devices.model import DeviceModel, EngineConcurrency, MemoryCache

__all__ = [
    "DeviceModel",
    "EngineConcurrency",
    "MemoryCache",
    "Source",
    "device_names",
    "load_device",
]
