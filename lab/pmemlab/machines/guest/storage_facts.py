"""The kernel's facts of disks, and of the mount that a folder is on."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from pmemlab.machines.guest.fact_reading import (
    Unreadable,
    read_kernel_text,
    run_json_program,
    run_program,
    try_read,
)
from pmemlab.mounts import mount_of
from pmemlab.placement import device_number

__all__ = ["read_disks", "read_mount", "read_ssd"]

_SYS = Path("/sys")
_BLOCK_DEVICES = _SYS / "class/block"
_SECTOR_BYTES = 512


def read_disks() -> list[dict[str, object]]:
    """Returns every disk that is a device of its own, by name. Left out are RAM disks, mappings,
    partitions, and persistent memory, which is listed with its region.
    """
    names = sorted(path.name for path in (_SYS / "block").iterdir() if _is_disk(path))
    if not names:
        return []
    columns = "NAME,MAJ:MIN,TRAN,ROTA,SIZE"
    listing = run_json_program(
        [
            "lsblk",
            "--json",
            "--bytes",
            "--nodeps",
            "--output",
            columns,
            *(f"/dev/{n}" for n in names),
        ]
    )
    return [
        {
            "name": disk["name"],
            "device_number": disk["maj:min"].strip(),
            "transport": disk["tran"] or Unreadable(f"lsblk names no transport of {disk['name']}"),
            "rotates": disk["rota"],
            "bytes": int(disk["size"]),
        }
        for disk in listing["blockdevices"]
    ]


def _is_disk(path: Path) -> bool:
    with suppress(FileNotFoundError):
        if (
            read_kernel_text(path / "hidden") == "1"
        ):  # one path of an NVMe disk, which may have several
            return False
    place = path.resolve()
    virtual = _SYS.resolve() / "devices/virtual"
    if place.is_relative_to(virtual):
        return place.is_relative_to(virtual / "nvme-subsystem")
    return "/ndbus" not in str(place)


def read_mount(path: str) -> dict[str, object]:
    """Returns the mount that `path` is on. Raises OSError if there is no such folder."""
    mount = mount_of(Path(path).resolve())
    device = mount.source
    space = os.statvfs(path)
    return {
        "device": device,
        "device_number": device_number(Path(path).stat().st_dev),
        "block_devices": try_read(lambda: _block_devices(device)),
        "mapping": try_read(lambda: _mapping(device)),
        "point": mount.point,
        "filesystem": mount.filesystem,
        "dax": mount.is_dax,
        "bytes": space.f_blocks * space.f_frsize,
        "free_bytes": space.f_bavail * space.f_frsize,
    }


def read_ssd(path: str, disks: object) -> dict[str, object]:
    """Returns the mount that `path` is on, with the disk below it.

    disks: the result of `read_disks`.
    """
    mount = read_mount(path)
    names = (
        "device",
        "device_number",
        "block_devices",
        "point",
        "filesystem",
        "bytes",
        "free_bytes",
    )
    facts = {name: mount[name] for name in names}
    block_devices = mount["block_devices"]
    disk: object = Unreadable(f"{mount['device']} is on no disk of its own")
    if isinstance(disks, Unreadable):
        disk = disks
    elif isinstance(disks, list) and isinstance(block_devices, list):
        found = [one for one in disks if [one["name"]] == block_devices]
        disk = found[0] if found else disk
    for name in ("transport", "rotates"):
        facts[name] = disk[name] if isinstance(disk, dict) else disk
    traffic = try_read(lambda: _traffic(str(mount["device_number"])))
    for name in ("read_bytes", "written_bytes"):
        facts[name] = traffic[name] if isinstance(traffic, dict) else traffic
    return facts


def _traffic(number: str) -> dict[str, int]:
    """Returns bytes read from and written to a device since the machine started. Raises OSError."""
    # Documentation/block/stat.rst: the third and the seventh field are sectors of 512 bytes.
    fields = read_kernel_text(Path("/sys/dev/block") / number / "stat").split()
    return {"read_bytes": int(fields[2]) * 512, "written_bytes": int(fields[6]) * 512}


def _block_devices(device: str) -> list[str]:
    """Returns the devices below a block device, through mappings; its own name if there are none.

    Raises OSError if `device` is no block device (a tmpfs has none).
    """
    return sorted(_lowest_devices(_block_device_folder(device).name))


def _block_device_folder(device: str) -> Path:
    if not Path(device).is_block_device():
        raise OSError(f"{device} is no block device")
    number = device_number(Path(device).stat().st_rdev)
    return Path(f"/sys/dev/block/{number}").resolve()


def _mapping(device: str) -> list[dict[str, object]]:
    """Returns the targets of a device-mapper device; empty if `device` is none.

    Raises OSError with dmsetup's message if this user may not run it.
    """
    if not _block_device_folder(device).joinpath("dm").exists():
        return []
    table = run_program(["dmsetup", "table", device])
    return [_target(line.split()) for line in table.splitlines()]


def _target(fields: list[str]) -> dict[str, object]:
    """Reads "start length type ...", and a stripe's "count chunk device offset ..."."""
    target: dict[str, object] = {"target": fields[2]}
    if fields[2] == "striped":
        target |= {"stripes": int(fields[3]), "chunk_bytes": int(fields[4]) * _SECTOR_BYTES}
    return target


def _lowest_devices(name: str) -> set[str]:
    folder = _BLOCK_DEVICES / name
    slaves = [path.name for path in (folder / "slaves").glob("*")]
    if slaves:
        return set().union(*map(_lowest_devices, slaves))
    if (folder / "partition").exists():
        return {folder.resolve().parent.name}
    return {name}
