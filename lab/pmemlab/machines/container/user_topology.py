"""A user's own topology, which the image does not have: its YAML is copied into the container."""

from __future__ import annotations

import hashlib
import io
import tarfile

from docker.models.containers import Container

from pmemlab.machines.container import labels
from pmemlab.topology import Topology, load_topology, topology_names

__all__ = [
    "copy_topology_into",
    "is_lab_topology",
    "path_in_container",
    "serves_topology",
    "topology_label",
]

_FOLDER = "/etc/pmemlab"


def is_lab_topology(topology: Topology) -> bool:
    """Returns whether the image contains this topology under its name."""
    return topology.name in topology_names() and topology == load_topology(topology.name)


def path_in_container(topology: Topology) -> str:
    return f"{_FOLDER}/{topology.name}.yaml"


def topology_label(topology: Topology) -> str:
    """Returns a label that tells apart users' topologies of one name; "" for the lab's own."""
    if is_lab_topology(topology):
        return ""
    return hashlib.sha256(topology.to_yaml().encode()).hexdigest()


def serves_topology(container: Container, topology: Topology) -> bool:
    """Returns whether the container was made for this topology, not for another of its name."""
    return container.labels.get(labels.TOPOLOGY, "") == topology_label(topology)


def copy_topology_into(container: Container, topology: Topology) -> None:
    """Copies a topology's YAML into a container, which need not run."""
    content = topology.to_yaml().encode()
    archive = io.BytesIO()
    with tarfile.open(mode="w", fileobj=archive) as tar:
        member = tarfile.TarInfo(path_in_container(topology).lstrip("/"))
        member.size = len(content)
        member.mode = 0o644
        tar.addfile(member, io.BytesIO(content))
    container.put_archive("/", archive.getvalue())
