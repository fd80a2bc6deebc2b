"""The medium that a folder really lies on, according to the kernel."""

from __future__ import annotations

import re
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from benchmarks.checkpoint_io.errors import MediumError
from benchmarks.checkpoint_io.libpmem import can_map_sync
from benchmarks.checkpoint_io.pacing import PacedDevice
from pmemlab.mounts import MEMORY_FILE_SYSTEMS, mount_of

if TYPE_CHECKING:
    from pmemlab.model.devices import DeviceModel

__all__ = ["Medium", "MediumFacts", "MediumKind", "paced_medium", "parse_medium"]

MediumKind = Literal["file", "dax", "mapped"]
"""file: through the file system. dax: the same, on a DAX mount. mapped: by stores into memory."""

_SYS_BLOCK: Final = Path("/sys/dev/block")
# Patterns of a device's path in sysfs, by bus.
_BUSES: Final = {
    "nvme": r"/nvme\d",
    "sata": r"/ata\d",
    "usb": r"/usb\d",
    "virtio": r"/virtio\d",
    "nvdimm": r"/(ndbus|nd_pmem|pmem)\d",
}


@dataclass(frozen=True)
class MediumFacts:
    """The kernel's facts about a folder. filesystem, mount_options, source: of the mount. device,
    bus, rotates: the block device under it, the device's bus and whether it is a spinning disk;
    None without a block device, as under tmpfs. map_sync: whether the kernel maps files there as
    persistent memory.
    """

    mount_point: str
    filesystem: str
    mount_options: str
    source: str
    device: str | None
    bus: str | None
    rotates: bool | None
    map_sync: bool

    @property
    def in_memory(self) -> bool:
        """Whether files there lie in this computer's memory alone."""
        return self.device is None and self.filesystem in MEMORY_FILE_SYSTEMS

    @property
    def summary(self) -> str:
        """A description in one line."""
        if self.device is None:
            where = "memory" if self.in_memory else self.source
        else:
            where = f"{self.device} ({self.bus or 'unknown bus'})"
        return f"{self.filesystem}{', dax' if self.map_sync else ''} on {where}"


@dataclass(frozen=True)
class Medium:
    """A medium to save on. name: given by the user. path: an existing folder. paced_as: the device
    whose times saves and loads take; None: not paced.
    """

    name: str
    path: Path
    kind: MediumKind
    facts: MediumFacts
    paced_as: PacedDevice | None = None

    @property
    def summary(self) -> str:
        """A description in one line."""
        if self.paced_as is None:
            return self.facts.summary
        return f"paced as {self.paced_as.name}, files in this computer's memory"

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "path": str(self.path),
            "kind": self.kind,
            "device": self.paced_as.name if self.paced_as else None,
            "kernel": {**asdict(self.facts), "summary": self.facts.summary},
        }


def parse_medium(text: str) -> Medium:
    """Parses NAME=PATH or NAME=PATH:KIND. Raises MediumError, which names the problem."""
    name, separator, rest = text.partition("=")
    if not (separator and name and rest):
        raise MediumError(f"{text!r}: a medium is given as NAME=PATH or NAME=PATH:KIND")
    kind: MediumKind = "file"
    for possible in get_args(MediumKind):
        if rest.endswith(f":{possible}"):
            rest, kind = rest.removesuffix(f":{possible}"), possible
    path = Path(rest)
    if not path.is_dir():
        raise MediumError(
            f"{name}: {rest} is no folder (after it may stand :{', :'.join(get_args(MediumKind))})"
        )
    facts = read_facts(path)
    if kind == "dax" and not facts.map_sync:
        raise MediumError(
            f"{name}: {rest} is {facts.summary}, which is no dax mount; give it as "
            f"{name}={rest}:file"
        )
    return Medium(name, path, kind, facts)


def paced_medium(device: DeviceModel, path: Path) -> Medium:
    """Returns a medium with the device's name, whose files lie in the folder.

    A disk is modelled with a file system with a page cache, a memory as a DAX mount. Raises
    MediumError if the folder isn't in memory, as its own time would add to the device's, or if the
    device is volatile; NotPublishedError if the device's file lacks a figure.
    """
    paced_as = PacedDevice.from_model(device)
    if not path.is_dir():
        raise MediumError(f"--paced-in: {path} is no folder")
    facts = read_facts(path)
    if not facts.in_memory:
        raise MediumError(
            f"--paced-in: {path} is {facts.summary}, whose own time would count beside that of "
            f"{device.name}; give a folder in memory, as /dev/shm"
        )
    kind: MediumKind = "file" if paced_as.has_page_cache else "dax"
    return Medium(device.name, path, kind, facts, paced_as)


def read_facts(path: Path) -> MediumFacts:
    """Ask the kernel about a folder. Raises MediumError if the folder can't be written."""
    mount = mount_of(path.resolve())
    device = _block_device(mount.device_number)
    return MediumFacts(
        mount_point=mount.point,
        filesystem=mount.filesystem,
        mount_options=mount.options,
        source=mount.source,
        device=device.name if device else None,
        bus=_bus(device) if device else None,
        rotates=_rotates(device) if device else None,
        map_sync=_maps_sync(path),
    )


def _block_device(number: str) -> Path | None:
    """Returns the whole disk's folder in sysfs; None if there is no such device."""
    folder = _SYS_BLOCK / number
    if not folder.exists():
        return None
    folder = folder.resolve()
    return folder.parent if (folder / "partition").exists() else folder


def _bus(device: Path) -> str | None:
    for bus, pattern in _BUSES.items():
        if re.search(pattern, str(device)):
            return bus
    return None


def _rotates(device: Path) -> bool | None:
    file = device / "queue" / "rotational"
    return file.read_text().strip() == "1" if file.exists() else None


def _maps_sync(path: Path) -> bool:
    try:
        with tempfile.NamedTemporaryFile(dir=path, prefix=".pmemlab-") as file:
            file.truncate(4096)
            return can_map_sync(Path(file.name))
    except OSError as error:
        raise MediumError(f"{path}: nothing can be written there: {error}") from error
