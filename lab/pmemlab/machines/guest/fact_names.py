"""The names of a machine's facts: what a topology's `proof` may demand."""

from __future__ import annotations

__all__ = ["FACTS", "is_fact_name", "shape_error", "what_is"]

# A star stands for a list's index, or for a number that is a key.
FACTS = {
    "kernel": "release, as `uname -r` says",
    "cpus": "CPUs that are online, by number",
    "socket_cpus.*": "CPUs of a socket",
    "memory_bytes": "memory that the kernel manages",
    "nodes": "NUMA nodes that are online",
    "nodes_with_cpus": "those that have CPUs",
    "nodes_without_cpus": "those that have none",
    "node_sources": "who says that there are nodes: SRAT (the firmware's table), numa=fake",
    "node_bytes.*": "a node's memory",
    "distances.*.*": "from the first node to the second, as the firmware says",
    "slow_nodes": "nodes in a lower memory tier than every node with CPUs",
    "memory_side_caches.*.node": "node whose memory is cached",
    "memory_side_caches.*.level": "1 is nearest to the memory",
    "memory_side_caches.*.bytes": "its size",
    "memory_side_caches.*.line_bytes": "size of a line",
    "memory_side_caches.*.indexing": "direct-mapped, complex or other",
    "memory_side_caches.*.write_policy": "write-back, write-through or other",
    "ram_bytes": "physical addresses that are System RAM from the boot on",
    "kmem_bytes": "those that `daxctl reconfigure-device --mode=system-ram` made so",
    "persistent_bytes": "those that the firmware calls persistent memory",
    "declared_persistent_bytes": "those that memmap= declares persistent",
    "dimms.*.name": "an NVDIMM",
    "dimms.*.provider": "of its bus, as regions.*.provider",
    "regions.*.name": "a region of persistent memory, as ndctl lists them",
    "regions.*.provider": "who tells of it: ACPI.NFIT (the firmware), e820 (memmap=), CXL",
    "regions.*.bytes": "its size",
    "regions.*.node": "the NUMA node that it is nearest to; -1 where the kernel can't tell",
    "regions.*.dimms": "how many DIMMs it spans",
    "regions.*.persistence_domain": "memory_controller (ADR), cpu_cache (eADR) or unknown",
    "regions.*.modes": "of its namespaces: fsdax, devdax, raw or sector",
    "cxl_memdevs.*.name": "a memory device behind CXL",
    "cxl_memdevs.*.ram_bytes": "its volatile memory",
    "cxl_memdevs.*.pmem_bytes": "its persistent memory",
    "cxl_regions.*.name": "a region of CXL memory, as `cxl list` has them",
    "cxl_regions.*.mode": "ram or pmem",
    "cxl_regions.*.bytes": "its size",
    "cxl_regions.*.decode_state": "commit where addresses lead to it",
    "cxl_regions.*.memdevs": "the devices that it is made of",
    "disks.*.name": "a disk that is a device of its own; no persistent memory",
    "disks.*.device_number": "major:minor",
    "disks.*.transport": "nvme, sata, virtio and so on, as lsblk says",
    "disks.*.rotates": "whether it has platters that turn",
    "disks.*.bytes": "its size",
    "mount.device": "what is mounted over the topology's pmem.path",
    "mount.device_number": "major:minor, as os.stat says of every file there",
    "mount.block_devices": "the devices beneath, mappings followed down",
    "mount.mapping.*.target": "of a device-mapper device: linear, striped and so on",
    "mount.mapping.*.stripes": "devices that it is striped over",
    "mount.mapping.*.chunk_bytes": "how much lies on one before the next",
    "mount.point": "where it is mounted",
    "mount.filesystem": "its type",
    "mount.dax": "whether it is mounted with dax",
    "mount.map_sync": "whether a file there can be mapped with MAP_SYNC",
    "mount.page_regions": "regions in which the pages of a mapped file there lie, by pagemap",
    "mount.bytes": "size of the file system",
    "mount.free_bytes": "of these, free",
    "libpmem.is_pmem": "libpmem's answer for a file there: 1 where stores need no msync",
    "memkind.page_nodes": "nodes on which memory of memkind's KMEM DAX kind lies",
    "memkind.page_nodes_from.*": "those where a CPU of that node asks for it",
    "ssd.device": "what is mounted over the topology's ssd.path",
    "ssd.device_number": "major:minor, as os.stat says of every file there",
    "ssd.block_devices": "the devices beneath, mappings followed down",
    "ssd.point": "where it is mounted",
    "ssd.filesystem": "its type",
    "ssd.bytes": "size of the file system",
    "ssd.free_bytes": "of these, free",
    "ssd.transport": "of the disk beneath, as disks.*.transport",
    "ssd.rotates": "of the disk beneath",
    "ssd.read_bytes": "read from that device since the machine started",
    "ssd.written_bytes": "written to it",
}

# By the last part of a fact's name that is no index. Facts that are neither are numbers.
_TEXTS = {
    *("kernel", "name", "provider", "persistence_domain", "indexing", "write_policy", "mode"),
    *("decode_state", "device", "device_number", "transport", "target", "point", "filesystem"),
    *("node_sources", "modes", "memdevs", "block_devices", "page_regions"),
}
_TRUTHS = {"rotates", "dax", "map_sync"}
_LISTS = {
    *("cpus", "socket_cpus", "nodes", "nodes_with_cpus", "nodes_without_cpus", "slow_nodes"),
    *("node_sources", "modes", "memdevs", "block_devices", "page_regions"),
    *("page_nodes", "page_nodes_from"),
}

_IN_WORDS: dict[type, tuple[str, str]] = {
    int: ("a number", "numbers"),
    str: ("a text", "texts"),
    bool: ("true or false", "true or false"),
}

_PATTERNS = [name.split(".") for name in FACTS]


def is_fact_name(name: str) -> bool:
    """Whether the probe knows a fact of this name, or facts beneath it ("regions").

    A number stands for itself, a star for all of a list ("regions.*.modes").
    """
    return _pattern_of(name) is not None


def shape_error(name: str, value: object) -> str | None:
    """Why no machine's fact of this name is ever of the value's type; None where one may be."""
    pattern = _pattern_of(name)
    assert pattern is not None
    parts = name.split(".")
    if len(parts) < len(pattern):
        # What lies beneath, as the probe prints it.
        return None if isinstance(value, list | dict) else "must be a list, or a mapping"
    last = next(part for part in reversed(pattern) if part != "*")
    kind: type = int
    if last in _TEXTS:
        kind = str
    elif last in _TRUTHS:
        kind = bool
    depth = parts.count("*") + (last in _LISTS)
    if _is_nested(value, kind, depth):
        return None
    one, several = _IN_WORDS[kind]
    return f"must be {'a list of ' + 'lists of ' * (depth - 1) + several if depth else one}"


def _is_nested(value: object, kind: type, depth: int) -> bool:
    if depth:
        return isinstance(value, list) and all(_is_nested(one, kind, depth - 1) for one in value)
    return type(value) is kind


def what_is(name: str) -> str:
    """What a fact is, for people; of facts beneath a name, what the first of them is."""
    return FACTS[".".join(_pattern_of(name) or [])]


def _pattern_of(name: str) -> list[str] | None:
    parts = name.split(".")
    for pattern in _PATTERNS:
        if len(parts) <= len(pattern) and all(
            part == known or (known == "*" and part.isdigit())
            for part, known in zip(parts, pattern, strict=False)
        ):
            return pattern
    return None
