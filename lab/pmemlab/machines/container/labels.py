"""Labels on everything that the lab makes in a Docker engine, so that it is found again."""

from __future__ import annotations

__all__ = ["BASE", "CLONE", "MACHINE", "OWNER", "SOURCES", "STAGE", "TOPOLOGY"]

BASE = "pmemlab.base"
"""On the image's base where debootstrap made it: the Debian release. All clones share it."""

CLONE = "pmemlab.clone"
"""On containers, networks, volumes and images: the clone's Compose project."""

MACHINE = "pmemlab.machine"
"""On containers: the topology's name."""

OWNER = "pmemlab.owner"
"""On throwaway containers only: the process that is to remove it."""

SOURCES = "pmemlab.sources"
"""On images: digest of the sources they were built from."""

STAGE = "pmemlab.stage"
"""On what the image is built in, as CLONE: builds find it again, and `down --images` removes it."""

TOPOLOGY = "pmemlab.topology"
"""On containers of a user's own topology: digest of its YAML."""
