"""Reads a machine's facts, in the machine:
`python -m pmemlab.machines.guest.probe [--path P] [--memkind] [--ssd P]`.

All facts come from the kernel or from the libraries that programs use, none from the topology. The
output is one JSON document on stdout. A fact that can't be read is left out, and the reason stands
under "unreadable".
"""

from __future__ import annotations

import argparse
import json
import os
from functools import partial

from pmemlab.machines.guest.cxl_facts import read_cxl_memdevs, read_cxl_regions
from pmemlab.machines.guest.fact_names import FACTS
from pmemlab.machines.guest.fact_reading import split_unreadable, try_read
from pmemlab.machines.guest.memory_facts import cpus_of, read_memory_facts
from pmemlab.machines.guest.pmem_facts import (
    is_pmem,
    map_sync,
    memkind_nodes,
    page_regions,
    read_nvdimm_buses,
)
from pmemlab.machines.guest.storage_facts import read_disks, read_mount, read_ssd

__all__ = ["read_facts"]


def read_facts(path: str | None, memkind: bool, ssd: str | None = None) -> dict[str, object]:
    """Returns this machine's facts, by the names of `fact_names`, and "unreadable": dotted name ->
    why.

    path: folder that should be on persistent memory; adds facts of its mount and of libpmem.
    memkind: whether to allocate from memkind's KMEM DAX kind and see where the page lies.
    ssd: folder that should be on a solid-state disk; adds facts of its mount and disk.
    """
    memory = read_memory_facts()
    buses = try_read(read_nvdimm_buses)
    disks = try_read(read_disks)
    found: dict[str, object] = {
        "kernel": os.uname().release,
        **memory,
        "dimms": buses["dimms"] if isinstance(buses, dict) else buses,
        "regions": buses["regions"] if isinstance(buses, dict) else buses,
        "cxl_memdevs": try_read(read_cxl_memdevs),
        "cxl_regions": try_read(read_cxl_regions),
        "disks": disks,
    }
    if path is not None:
        mount = try_read(lambda: read_mount(path))
        if isinstance(mount, dict):
            mount["map_sync"] = try_read(lambda: map_sync(path))
            mount["page_regions"] = try_read(lambda: page_regions(path))
        found["mount"] = mount
        found["libpmem"] = {"is_pmem": try_read(lambda: is_pmem(path))}
    if memkind:
        found["memkind"] = _read_memkind(memory["nodes_with_cpus"])
    if ssd is not None:
        found["ssd"] = try_read(lambda: read_ssd(ssd, disks))
    facts, unreadable = split_unreadable(found)
    return {**facts, "unreadable": unreadable}


def _read_memkind(nodes_with_cpus: object) -> dict[str, object]:
    assert isinstance(nodes_with_cpus, list)
    askers = [node for node in nodes_with_cpus if cpus_of(node)]
    answers = {str(node): try_read(partial(memkind_nodes, node)) for node in askers}
    unreadable = [answer for answer in answers.values() if not isinstance(answer, list)]
    all_nodes = {node for nodes in answers.values() if isinstance(nodes, list) for node in nodes}
    return {
        "page_nodes": unreadable[0] if unreadable else sorted(all_nodes),
        "page_nodes_from": answers,
    }


def main() -> None:
    names = "".join(f"\n  {name:34}{meaning}" for name, (_, meaning) in FACTS.items())
    parser = argparse.ArgumentParser(
        description="Print this machine's facts as JSON.",
        epilog=f"facts:{names}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--path", help="folder that is said to be on persistent memory")
    parser.add_argument("--memkind", action="store_true", help="allocate by memkind's KMEM DAX")
    parser.add_argument("--ssd", help="folder that is said to be on a solid-state disk")
    arguments = parser.parse_args()
    print(json.dumps(read_facts(arguments.path, arguments.memkind, arguments.ssd)))


if __name__ == "__main__":
    main()
