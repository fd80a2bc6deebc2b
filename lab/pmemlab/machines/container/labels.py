"""Labels on everything that the lab makes in a Docker engine, by which it is found again."""

from __future__ import annotations

__all__ = ["BASE", "CLONE", "MACHINE", "OWNER", "SOURCES", "STAGE", "TOPOLOGY"]

BASE = "pmemlab.base"
"""On an image's base made by debootstrap: the Debian release. All clones share the base."""

CLONE = "pmemlab.clone"
"""On containers, networks, volumes and images: the clone's Compose project."""

MACHINE = "pmemlab.machine"
"""On containers: the topology's name."""

OWNER = "pmemlab.owner"
"""On throwaway containers only: the process that must remove them."""

SOURCES = "pmemlab.sources"
"""On images: digest of the sources they were built from."""

STAGE = "pmemlab.stage"
"""On build stages, with CLONE's value: builds reuse them, and `down --images` removes them."""

TOPOLOGY = "pmemlab.topology"
"""On containers of a user's own topology: digest of its YAML."""
