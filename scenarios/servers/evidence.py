"""Checks, by the kernel's view of the servers' processes, that rows lie in each server's PMem."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Protocol

Shard = dict[str, Any]  # an entry of `python -m embstore.server status --json`


class PmemServer(Protocol):
    @property
    def pmem(self) -> Path:
        """The server's folder in PMem, by its path in the server's processes."""

    def runs(self, shard: Shard) -> bool: ...

    def smaps(self, process: int) -> str:
        """Returns the kernel's table of a process's mappings."""


@dataclasses.dataclass(frozen=True)
class ServerProcesses:
    """A server on this computer. processes: all processes of its node."""

    processes: Collection[int]
    pmem: Path

    def runs(self, shard: Shard) -> bool:
        return shard["process_id"] in self.processes

    def smaps(self, process: int) -> str:
        return Path(f"/proc/{process}/smaps").read_text()


def assert_rows_lie_in_pmem(
    servers: Sequence[PmemServer], shards: Collection[Shard], rows: int
) -> None:
    """Checks that each shard's process belongs to one server, whose folder has at least as many
    resident bytes as the shard reports in PMem; that each server has some; and that all are there.
    """
    rows_in_pmem = [0] * len(servers)
    reported_rows = 0
    for shard in shards:
        process, tiers = shard["process_id"], shard["status"]["tiers"]
        owners = [number for number, server in enumerate(servers) if server.runs(shard)]
        assert len(owners) == 1, (
            f"the shard of process {process} is of {len(owners)} servers with PMem"
        )
        server = servers[owners[0]]
        in_pmem = [tier for tier in tiers if tier["kind"].startswith("PMEM")]
        assert in_pmem, f"the shard of process {process} has no tier in PMem"
        reported_bytes = sum(tier["bytes"] for tier in in_pmem)
        resident_bytes = _resident_bytes(server.smaps(process), server.pmem)
        assert resident_bytes >= reported_bytes, (
            f"the shard of process {process} says to have {reported_bytes} bytes in "
            f"{server.pmem}, and the "
            f"kernel has {resident_bytes} of its pages there"
        )
        rows_in_pmem[owners[0]] += sum(tier["rows"] for tier in in_pmem)
        reported_rows += sum(tier["rows"] for tier in tiers)
    empty = [str(server.pmem) for server, n in zip(servers, rows_in_pmem, strict=True) if not n]
    assert not empty, f"no row lies in {', '.join(empty)}"
    assert reported_rows == rows, f"the shards have {reported_rows} rows of {rows}"


def _resident_bytes(smaps: str, folder: Path) -> int:
    """Returns the resident bytes of mappings of files under the folder."""
    resident, is_under = 0, False
    for line in smaps.splitlines():
        name, _, rest = line.partition(" ")
        if not name.endswith(":"):  # a mapping's own line: its range first, its file last
            path = line.partition("/")
            is_under = Path(path[1] + path[2]).is_relative_to(folder)
        elif name == "Rss:" and is_under:
            resident += int(rest.split()[0]) << 10
    return resident
