"""The storage types that are planned, and the devices that their tiers can lie on."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, get_args

from embstore.devices import Device
from embstore.options import TIER_KINDS, StorageType, TierKind
from pmemlab.errors import LabError, PlanError
from pmemlab.model.devices import load_device
from pmemlab.model.devices.loading import device_path

__all__ = [
    "DRAM_LATENCY_LIMIT_NS",
    "PLANNED_TYPES",
    "DeviceAssignment",
    "DevicePool",
    "PlannedDevice",
    "Role",
    "device_role",
    "named_devices",
    "placements",
    "storage_type_by_name",
]

Role = Literal["HBM", "DRAM", "PMEM", "SSD"]

DRAM_LATENCY_LIMIT_NS = 170.0
"""A memory with a longer random load latency isn't treated as DRAM: DDR4 and DDR5 have about 100,
another socket's memory about 140; CXL memory and Optane have 240 and more.
"""

# SSDHASH and LEVELDB alone mean these types with DRAM above.
_SAME = {
    StorageType.SSDHASH: StorageType.DRAM_SSDHASH,
    StorageType.LEVELDB: StorageType.DRAM_LEVELDB,
}
_TIERS: dict[str, Role] = {role: role for role in get_args(Role)}
_ROLES: dict[TierKind, Role] = {
    TierKind.HBM: "HBM",
    TierKind.DRAM: "DRAM",
    TierKind.PMEM: "PMEM",
    TierKind.PMEM_LIBPMEM: "PMEM",
    TierKind.PMEM_MEMKIND: "PMEM",
    TierKind.SSDHASH: "SSD",
    TierKind.LEVELDB: "SSD",
}
PLANNED_TYPES = tuple(
    kind
    for kind, tiers in TIER_KINDS.items()
    if kind not in _SAME and all(tier in _ROLES for tier in tiers)
)


class PlannedDevice(Device, Protocol):
    """The interface of a device that a plan needs beyond the engine's; `DeviceModel`
    implements it.
    """

    @property
    def media_line_bytes(self) -> int: ...
    @property
    def bus(self) -> PlannedDevice | None: ...
    def latency_ns(self, operation: str, pattern: str) -> float: ...


DevicePool = dict[Role, tuple[PlannedDevice, ...]]


@dataclass(frozen=True)
class DeviceAssignment:
    """A storage type with a device for each tier, and for the DRAM that holds the index."""

    storage_type: StorageType
    devices: tuple[PlannedDevice, ...]
    index_device: PlannedDevice

    @property
    def kinds(self) -> tuple[TierKind, ...]:
        return TIER_KINDS[self.storage_type]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(device.name for device in self.devices)


def storage_type_by_name(name: str) -> StorageType:
    """Returns a storage type by name. Raises PlanError."""
    try:
        storage_type = StorageType[name.upper()]
    except KeyError:
        known = ", ".join(kind.name for kind in PLANNED_TYPES)
        raise PlanError(f"--storage-types {name}: no storage type; there are {known}") from None
    return _SAME.get(storage_type, storage_type)


def device_role(device: PlannedDevice) -> Role:
    """Returns the kind of tier that a device suits. Raises PlanError if its figures don't tell."""
    if device.bus is not None:
        return "HBM"
    if not device.is_addressable:
        return "SSD"
    if device.cache is not None:  # memory mode: all of a machine's memory, cached by DRAM
        return "DRAM"
    if device.media_line_bytes > 64:
        return "PMEM"
    try:
        latency_ns = device.latency_ns("load", "random")
    except LabError as error:
        raise PlanError(
            f"--devices {device.name}: say DRAM={device.name} or PMEM={device.name}, since nothing "
            f"tells which it is like: {error}"
        ) from error
    return "DRAM" if latency_ns <= DRAM_LATENCY_LIMIT_NS else "PMEM"


def named_devices(names: Iterable[str]) -> DevicePool:
    """Returns devices by tier. names: device names or paths of device files, or TIER=NAME if the
    device alone doesn't determine the tier; TIER is HBM, DRAM, PMEM or SSD. Raises PlanError, and
    the errors of `load_device`.

    Plans tell devices apart by their names, so two files with the same name are an error.
    """
    pool: dict[Role, dict[str, PlannedDevice]] = {role: {} for role in _TIERS.values()}
    files: dict[str, str] = {}
    for name in names:
        role, device_name = _tier_and_device(name)
        device: PlannedDevice = load_device(device_name)
        first = files.setdefault(device.name, device_name)
        if device_path(first).resolve() != device_path(device_name).resolve():
            raise PlanError(
                f"--devices {name}: is called {device.name}, as {first} is already, and plans tell "
                "devices apart by their names; rename one of the files, and the name in it"
            )
        if role is None:
            role = device_role(device)
        _check_role(name, role, device)
        pool[role][device.name] = device
    return {role: tuple(devices.values()) for role, devices in pool.items()}


def placements(
    storage_types: Sequence[StorageType], pool: DevicePool, *, is_requested: bool
) -> Iterator[DeviceAssignment]:
    """Yields every storage type on every combination of devices for its tiers.

    is_requested: raise PlanError for a storage type without devices, instead of leaving it out.
    """
    for storage_type in storage_types:
        roles = [_ROLES[kind] for kind in TIER_KINDS[storage_type]]
        # The index is always in DRAM: in the DRAM tier's device if there is one.
        needed_roles = roles if "DRAM" in roles else ["DRAM", *roles]
        lacking = [role for role in needed_roles if not pool.get(role)]
        if lacking:
            if is_requested:
                raise PlanError(
                    _missing_role_text(storage_type, lacking[0], needed_roles is roles, pool)
                )
            continue
        for devices in itertools.product(*(pool[role] for role in needed_roles)):
            tiers = devices if needed_roles is roles else devices[1:]
            index = devices[needed_roles.index("DRAM")]
            if "PMEM" in roles and index.cache is not None:
                continue  # in memory mode no persistent memory is left for a tier
            _check_first(storage_type, tiers[0])
            yield DeviceAssignment(storage_type, tuple(tiers), index)


def _tier_and_device(name: str) -> tuple[Role | None, str]:
    """Returns the tier and the device of TIER=NAME; no tier for a path that has a `=` itself."""
    given, equals, device_name = name.partition("=")
    role = _TIERS.get(given.upper())
    if not equals or (role is None and Path(name).exists()):
        return None, name
    if role is None:
        raise PlanError(f"--devices {name}: {given} is no tier; there are HBM, DRAM, PMEM and SSD")
    return role, device_name


def _check_role(name: str, role: Role, device: PlannedDevice) -> None:
    """Raises PlanError if the device can't be a tier of this role."""
    if (role == "HBM") != (device.bus is not None):
        raise PlanError(
            f"--devices {name}: a tier of HBM is on a GPU, and no other is; {device.name} is "
            f"{'a' if device.bus is not None else 'no'} GPU"
        )
    if role in ("DRAM", "PMEM") and not device.is_addressable:
        raise PlanError(
            f"--devices {name}: {device.name} is a disk, which the CPU can't load rows from, so it "
            f"can't be a first tier or one of memory; give SSD={device.name}"
        )
    if role == "SSD" and device.is_addressable:
        raise PlanError(
            f"--devices {name}: {device.name} is memory; SSDHASH and LEVELDB are planned on disks"
        )


def _check_first(storage_type: StorageType, device: PlannedDevice) -> None:
    if not device.is_addressable and device.bus is None:
        raise PlanError(
            f"{storage_type.name}: {device.name} is a disk, which the CPU can't load rows from, so "
            "it can't be the first tier; put memory there"
        )


def _missing_role_text(
    storage_type: StorageType, role: str, is_tier: bool, pool: DevicePool
) -> str:
    suitable = {
        "HBM": "a GPU",
        "DRAM": "DRAM or memory mode",
        "PMEM": "PMem or CXL memory",
        "SSD": "a disk",
    }[role]
    place = f"its {role} tier" if is_tier or role != "DRAM" else "its index"
    given = ", ".join(device.name for devices in pool.values() for device in devices) or "none"
    message = f"--devices: {storage_type.name} needs {suitable} for {place}; given: {given}"
    disks = ", ".join(device.name for device in pool.get("SSD", ()))
    if role == "DRAM" and disks:
        message += f" (a disk, as {disks}, can't be a first tier)"
    return message
