"""Whether rows lie in the PMem of each server: what the kernel says of the servers' processes."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Protocol

Shard = dict[str, Any]  # as `python -m embstore.server status --json` tells of one


class PmemServer(Protocol):
    @property
    def pmem(self) -> Path:
        """The folder that it was given, as its processes have it."""

    def runs(self, shard: Shard) -> bool: ...

    def smaps(self, process: int) -> str:
        """The kernel's table of that process's mappings."""


@dataclasses.dataclass(frozen=True)
class ServerProcesses:
    """A server on this computer. processes: all of its node."""

    processes: Collection[int]
    pmem: Path

    def runs(self, shard: Shard) -> bool:
        return shard["process_id"] in self.processes

    def smaps(self, process: int) -> str:
        return Path(f"/proc/{process}/smaps").read_text()


def assert_rows_lie_in_pmem(
    servers: Sequence[PmemServer], shards: Collection[Shard], rows: int
) -> None:
    """Each shard's process is of one server, whose folder has, in pages that are there, as much as
    the shard says to keep in PMem; each server has some; and together they have all the rows.
    """
    rows_in_pmem = [0] * len(servers)
    told = 0
    for shard in shards:
        process, tiers = shard["process_id"], shard["status"]["tiers"]
        of = [number for number, server in enumerate(servers) if server.runs(shard)]
        assert len(of) == 1, f"the shard of process {process} is of {len(of)} servers with PMem"
        server = servers[of[0]]
        in_pmem = [tier for tier in tiers if tier["kind"].startswith("PMEM")]
        assert in_pmem, f"the shard of process {process} has no tier in PMem"
        needed = sum(tier["bytes"] for tier in in_pmem)
        found = _resident_bytes(server.smaps(process), server.pmem)
        assert found >= needed, (
            f"the shard of process {process} says to have {needed} bytes in {server.pmem}, and the "
            f"kernel has {found} of its pages there"
        )
        rows_in_pmem[of[0]] += sum(tier["rows"] for tier in in_pmem)
        told += sum(tier["rows"] for tier in tiers)
    empty = [str(server.pmem) for server, n in zip(servers, rows_in_pmem, strict=True) if not n]
    assert not empty, f"no row lies in {', '.join(empty)}"
    assert told == rows, f"the shards have {told} rows of {rows}"


def _resident_bytes(smaps: str, folder: Path) -> int:
    """Returns the resident bytes of mappings of files under the folder."""
    resident, is_under = 0, False
    for line in smaps.splitlines():
        name, _, rest = line.partition(" ")
        if not name.endswith(":"):  # a mapping's own line: its range, and in the end its file
            path = line.partition("/")
            is_under = Path(path[1] + path[2]).is_relative_to(folder)
        elif name == "Rss:" and is_under:
            resident += int(rest.split()[0]) << 10
    return resident
