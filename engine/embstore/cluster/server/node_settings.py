"""A node's PMem settings, which its server was started with and the shards on the node use.

The server passes them to the processes that Ray starts on its node, as environment variables.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from embstore.errors import MissingDeviceError
from embstore.options import NODE_PMEM, Tier, TierKind
from embstore.table.shard import ShardSpec

__all__ = ["NodeSettings"]

_PMEM_PATH = "EMBSTORE_NODE_PMEM_PATH"
_CACHE_BYTES = "EMBSTORE_NODE_CACHE_BYTES"


@dataclass(frozen=True)
class NodeSettings:
    """The PMem folder and the cache size that a node's server was started with.

    pmem_path: a directory; None: the node has no PMem.
    cache_bytes: size of the DRAM tier of each shard that uses the node's PMem and leaves that size
        open; None: the size that a shard has without a server.
    """

    pmem_path: str | None = None
    cache_bytes: int | None = None

    @classmethod
    def of_this_process(cls, environment: Mapping[str, str] = os.environ) -> NodeSettings:
        cache = environment.get(_CACHE_BYTES)
        return cls(environment.get(_PMEM_PATH), None if cache is None else int(cache))

    def environment(self) -> dict[str, str]:
        """Returns the settings as environment variables of the node's processes."""
        variables: dict[str, str] = {}
        if self.pmem_path is not None:
            variables[_PMEM_PATH] = self.pmem_path
        if self.cache_bytes is not None:
            variables[_CACHE_BYTES] = str(self.cache_bytes)
        return variables

    def place(self, host: str) -> str:
        """Returns a resource that only this node has. Several nodes, each with PMem of its own, may
        be on one computer and share its address.
        """
        return f"node:{host}" if self.pmem_path is None else f"pmem:{host}:{self.pmem_path}"

    def settle(self, tiers: Sequence[Tier], spec: ShardSpec) -> tuple[list[Tier], ShardSpec]:
        """Returns tiers and spec with this node's paths and sizes filled in for those left open.
        Raises MissingDeviceError if tiers ask for NODE_PMEM and the node has no PMem.
        """
        if not any(tier.path == NODE_PMEM for tier in tiers):
            return list(tiers), spec
        if self.pmem_path is None:
            raise MissingDeviceError(
                "storage_path: NODE_PMEM needs nodes that were started by python -m "
                "embstore.server --pmem DIRECTORY, and this one offers PMem without"
            )
        settled = [
            replace(
                tier,
                path=self.pmem_path if tier.path == NODE_PMEM else tier.path,
                size_bytes=self._size_bytes(tier),
            )
            for tier in tiers
        ]
        return settled, replace(
            spec,
            tiers=[
                replace(own, path=_moved(own.path, tier, now), size_bytes=now.size_bytes)
                for own, tier, now in zip(spec.tiers, tiers, settled, strict=True)
            ],
        )

    def _size_bytes(self, tier: Tier) -> int | None:
        if tier.kind is TierKind.DRAM and tier.is_default_size and self.cache_bytes is not None:
            return self.cache_bytes
        return tier.size_bytes


def _moved(file: str | None, tier: Tier, now: Tier) -> str | None:
    """Returns the file's path after its tier's folder has moved from `tier.path` to `now.path`."""
    if file is None or tier.path == now.path or now.path is None:
        return file
    return str(Path(now.path) / Path(file).name)
