"""The names of a machine's facts, for a topology's `proof`."""

from __future__ import annotations

__all__ = ["FACTS", "fact_meaning", "is_fact_name", "shape_error"]

# Name -> (type, meaning). A star stands for a list's index, or for a number that is a key.
FACTS: dict[str, tuple[type | list[type], str]] = {
    "kernel": (str, "release, as `uname -r` says"),
    "cpus": ([int], "CPUs that are online, by number"),
    "socket_cpus.*": ([int], "CPUs of a socket"),
    "memory_bytes": (int, "memory that the kernel manages"),
    "nodes": ([int], "NUMA nodes that are online"),
    "nodes_with_cpus": ([int], "nodes with CPUs"),
    "nodes_without_cpus": ([int], "nodes without CPUs"),
    "node_sources": (
        [str],
        "what defines the nodes: SRAT (the firmware's table), numa=fake",
    ),
    "node_bytes.*": (int, "a node's memory"),
    "distances.*.*": (int, "from the first node to the second, as the firmware says"),
    "slow_nodes": ([int], "nodes in a lower memory tier than every node with CPUs"),
    "memory_side_caches.*.node": (int, "node whose memory is cached"),
    "memory_side_caches.*.level": (int, "1 is nearest to the memory"),
    "memory_side_caches.*.bytes": (int, "its size"),
    "memory_side_caches.*.line_bytes": (int, "size of a line"),
    "memory_side_caches.*.indexing": (str, "direct-mapped, complex or other"),
    "memory_side_caches.*.write_policy": (str, "write-back, write-through or other"),
    "ram_bytes": (int, "physical addresses that are System RAM from the boot on"),
    "kmem_bytes": (int, "addresses that `daxctl reconfigure-device --mode=system-ram` made RAM"),
    "persistent_bytes": (int, "physical addresses that the firmware calls persistent memory"),
    "declared_persistent_bytes": (int, "physical addresses that memmap= declares persistent"),
    "dimms.*.name": (str, "an NVDIMM"),
    "dimms.*.provider": (str, "provider of its bus, as in regions.*.provider"),
    "regions.*.name": (str, "a region of persistent memory, as ndctl lists them"),
    "regions.*.provider": (str, "its source: ACPI.NFIT (the firmware), e820 (memmap=), CXL"),
    "regions.*.bytes": (int, "its size"),
    "regions.*.node": (int, "the NUMA node that it is nearest to; -1 if the kernel can't tell"),
    "regions.*.dimms": (int, "how many DIMMs it spans"),
    "regions.*.persistence_domain": (str, "memory_controller (ADR), cpu_cache (eADR) or unknown"),
    "regions.*.modes": ([str], "modes of its namespaces: fsdax, devdax, raw or sector"),
    "cxl_memdevs.*.name": (str, "a memory device behind CXL"),
    "cxl_memdevs.*.ram_bytes": (int, "its volatile memory"),
    "cxl_memdevs.*.pmem_bytes": (int, "its persistent memory"),
    "cxl_regions.*.name": (str, "a region of CXL memory, as `cxl list` prints it"),
    "cxl_regions.*.mode": (str, "ram or pmem"),
    "cxl_regions.*.bytes": (int, "its size"),
    "cxl_regions.*.decode_state": (str, "commit if addresses lead to it"),
    "cxl_regions.*.memdevs": ([str], "the devices that it is made of"),
    "disks.*.name": (str, "a disk that is a device of its own; no persistent memory"),
    "disks.*.device_number": (str, "major:minor"),
    "disks.*.transport": (str, "nvme, sata, virtio and so on, as lsblk says"),
    "disks.*.rotates": (bool, "whether it has platters that turn"),
    "disks.*.bytes": (int, "its size"),
    "mount.device": (str, "device that is mounted over the topology's pmem.path"),
    "mount.device_number": (str, "major:minor, as os.stat says of every file there"),
    "mount.block_devices": ([str], "the devices below, through mappings"),
    "mount.mapping.*.target": (str, "target of a device-mapper device: linear, striped and so on"),
    "mount.mapping.*.stripes": (int, "number of devices that it is striped over"),
    "mount.mapping.*.chunk_bytes": (int, "bytes on one device before the next"),
    "mount.point": (str, "where it is mounted"),
    "mount.filesystem": (str, "its type"),
    "mount.dax": (bool, "whether it is mounted with dax"),
    "mount.map_sync": (bool, "whether a file there can be mapped with MAP_SYNC"),
    "mount.page_regions": (
        [str],
        "regions in which the pages of a mapped file there lie, by pagemap",
    ),
    "mount.bytes": (int, "size of the file system"),
    "mount.free_bytes": (int, "free bytes of it"),
    "libpmem.is_pmem": (int, "libpmem's answer for a file there: 1 if stores need no msync"),
    "memkind.page_nodes": ([int], "nodes on which memory of memkind's KMEM DAX kind lies"),
    "memkind.page_nodes_from.*": ([int], "the same for a CPU of that node"),
    "ssd.device": (str, "device that is mounted over the topology's ssd.path"),
    "ssd.device_number": (str, "major:minor, as os.stat says of every file there"),
    "ssd.block_devices": ([str], "the devices below, through mappings"),
    "ssd.point": (str, "where it is mounted"),
    "ssd.filesystem": (str, "its type"),
    "ssd.bytes": (int, "size of the file system"),
    "ssd.free_bytes": (int, "free bytes of it"),
    "ssd.transport": (str, "transport of the disk below, as in disks.*.transport"),
    "ssd.rotates": (bool, "whether the disk below rotates"),
    "ssd.read_bytes": (int, "bytes read from that device since the machine started"),
    "ssd.written_bytes": (int, "bytes written to that device since then"),
}

_IN_WORDS: dict[type, tuple[str, str]] = {
    int: ("a number", "numbers"),
    str: ("a text", "texts"),
    bool: ("true or false", "true or false"),
}

_PATTERNS = [name.split(".") for name in FACTS]


def is_fact_name(name: str) -> bool:
    """Returns whether the probe knows a fact of this name, or facts below it ("regions").

    A number stands for itself, a star for all items of a list ("regions.*.modes").
    """
    return _pattern_of(name) is not None


def shape_error(name: str, value: object) -> str | None:
    """Returns why no fact of this name can have the value's type; None if one can."""
    pattern = _pattern_of(name)
    assert pattern is not None
    parts = name.split(".")
    if len(parts) < len(pattern):
        # The name of several facts, whose value is as the probe prints it.
        return None if isinstance(value, list | dict) else "must be a list, or a mapping"
    of_type, _ = FACTS[".".join(pattern)]
    kind = of_type[0] if isinstance(of_type, list) else of_type
    depth = parts.count("*") + isinstance(of_type, list)
    if _is_nested(value, kind, depth):
        return None
    one, several = _IN_WORDS[kind]
    return f"must be {'a list of ' + 'lists of ' * (depth - 1) + several if depth else one}"


def _is_nested(value: object, kind: type, depth: int) -> bool:
    if depth:
        return isinstance(value, list) and all(_is_nested(one, kind, depth - 1) for one in value)
    return type(value) is kind


def fact_meaning(name: str) -> str:
    """Returns the meaning of a fact, for people; for a name of several facts, that of the first."""
    return FACTS[".".join(_pattern_of(name) or [])][1]


def _pattern_of(name: str) -> list[str] | None:
    parts = name.split(".")
    for pattern in _PATTERNS:
        if len(parts) <= len(pattern) and all(
            part == known or (known == "*" and part.isdigit())
            for part, known in zip(parts, pattern, strict=False)
        ):
            return pattern
    return None
