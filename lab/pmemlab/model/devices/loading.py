"""Loads devices by name, or by the path of the user's own file."""

from __future__ import annotations

import difflib
import functools
from pathlib import Path

from pmemlab.errors import DeviceFileError
from pmemlab.model.devices.block_device import BlockDevice
from pmemlab.model.devices.device_file import CompositionFile, DeviceFile, read_device_file
from pmemlab.model.devices.gpu_device import GpuDevice
from pmemlab.model.devices.memory_device import MemoryDevice
from pmemlab.model.devices.memory_mode import MemoryModeDevice
from pmemlab.model.devices.model import DeviceModel, EngineConcurrency
from pmemlab.schema import YAML_SUFFIXES

__all__ = ["device_names", "device_path", "load_device"]

_FOLDER = Path(__file__).parent


def device_names() -> tuple[str, ...]:
    """Returns the names of the devices that come with the lab."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


def load_device(
    name_or_path: str | Path, concurrency: EngineConcurrency | None = None
) -> DeviceModel:
    """Returns a device of `device_names()`, or of a file; a path has a slash or ends with .yaml.

    concurrency: what each thread has in flight; by default as much as the engine keeps.

    Raises DeviceFileError, which names file and field.
    """
    concurrency = EngineConcurrency() if concurrency is None else concurrency
    file = _read(device_path(name_or_path))
    if isinstance(file, CompositionFile):
        # Names in a user's own file may be paths relative to it.
        dram, pmem = (
            load_device(_plain_part(file, field), concurrency) for field in ("dram", "pmem")
        )
        return MemoryModeDevice(file, dram, pmem)
    if file.kind == "block":
        return BlockDevice(file, concurrency)
    if file.kind == "gpu":
        return GpuDevice(file, concurrency)
    return MemoryDevice(file, concurrency)


def device_path(name_or_path: str | Path) -> Path:
    """Returns the path of the file that `load_device` reads. Raises DeviceFileError."""
    name_or_path = str(name_or_path)
    if "/" in name_or_path or name_or_path.endswith(YAML_SUFFIXES):
        return Path(name_or_path)
    if name_or_path in device_names():
        return _FOLDER / f"{name_or_path}.yaml"
    near = difflib.get_close_matches(name_or_path, device_names(), n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(device_names())}."
    raise DeviceFileError(
        f"{name_or_path}: no device of this name; {hint} A file of your own is given by its path"
    )


def _read(path: Path) -> DeviceFile | CompositionFile:
    return _read_once(path) if path.parent == _FOLDER else read_device_file(path)


# The lab's own files don't change, and a plan loads each many times.
_read_once = functools.cache(read_device_file)


def _plain_part(file: CompositionFile, field: str) -> str:
    """Returns the name or path of a part. The part must not be composed itself, for example of this
    very file.
    """
    name: str = getattr(file, field)
    if name.endswith(YAML_SUFFIXES):
        name = str(file.path.parent / name)
    if isinstance(_read(device_path(name)), CompositionFile):
        raise DeviceFileError(f"{file.path}: {field}: {name} is no plain memory")
    return name
