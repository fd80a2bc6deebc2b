"""What a folder really is on, as the kernel says it."""

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
"""file: through the file system. dax: the same, on a dax mount. mapped: by stores into memory."""

_SYS_BLOCK: Final = Path("/sys/dev/block")
# Parts of a device's place in sysfs, and what they mean.
_BUSES: Final = {
    "nvme": r"/nvme\d",
    "sata": r"/ata\d",
    "usb": r"/usb\d",
    "virtio": r"/virtio\d",
    "nvdimm": r"/(ndbus|nd_pmem|pmem)\d",
}


@dataclass(frozen=True)
class MediumFacts:
    """filesystem, mount_options, source: of the mount. device, bus, rotates: the block device under
    it, the bus that it hangs on and whether it is a spinning disk; None where there is none, as
    under tmpfs. map_sync: whether the kernel maps files there as persistent memory."""

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
        """Whether files there are on no medium but this computer's memory."""
        return self.device is None and self.filesystem in MEMORY_FILE_SYSTEMS

    @property
    def summary(self) -> str:
        """One line for people."""
        if self.device is None:
            where = "memory" if self.in_memory else self.source
        else:
            where = f"{self.device} ({self.bus or 'unknown bus'})"
        return f"{self.filesystem}{', dax' if self.map_sync else ''} on {where}"


@dataclass(frozen=True)
class Medium:
    """name: what its user calls it. path: a folder that exists. paced_as: what saves and loads
    take as long as on; None: as they take here."""

    name: str
    path: Path
    kind: MediumKind
    facts: MediumFacts
    paced_as: PacedDevice | None = None

    @property
    def summary(self) -> str:
        """What it is, in one line for people."""
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
    """NAME=PATH or NAME=PATH:KIND. Raises MediumError, which names what is wrong."""
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
    """A medium of the device's name, whose files lie in the folder.

    A disk has a file system with a page cache, a memory one that is a dax mount. Raises
    MediumError where that folder isn't in memory, whose own time would count beside the device's,
    or the device keeps nothing; NotPublishedError where its file lacks a figure.
    """
    paced_as = PacedDevice.of(device)
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
    """Ask the kernel. Raises MediumError where the folder can't be written."""
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
    """The whole disk's folder in sysfs."""
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
