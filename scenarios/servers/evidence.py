"""Whether rows lie in the PMem of each server: what the kernel says of the servers' processes."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True)
class PmemServer:
    """processes: all of its node. pmem: the folder that it was given."""

    processes: Collection[int]
    pmem: Path


def assert_rows_lie_in_pmem(
    servers: Collection[PmemServer], shards: Collection[dict[str, Any]], rows: int
) -> None:
    """Each shard's process is of one server, whose folder has, in pages that are there, as much as
    the shard says to keep in PMem; each server has some; and together they have all the rows.

    shards: as `python -m embstore.server status --json` tells of them.
    """
    rows_in_pmem = dict.fromkeys((server.pmem for server in servers), 0)
    told = 0
    for shard in shards:
        process, tiers = shard["process_id"], shard["status"]["tiers"]
        of = [server for server in servers if process in server.processes]
        assert len(of) == 1, f"the shard of process {process} is of {len(of)} servers with PMem"
        in_pmem = [tier for tier in tiers if tier["kind"].startswith("PMEM")]
        assert in_pmem, f"the shard of process {process} has no tier in PMem"
        needed = sum(tier["bytes"] for tier in in_pmem)
        found = _resident_bytes(process, of[0].pmem)
        assert found >= needed, (
            f"the shard of process {process} says to have {needed} bytes in {of[0].pmem}, and the "
            f"kernel has {found} of its pages there"
        )
        rows_in_pmem[of[0].pmem] += sum(tier["rows"] for tier in in_pmem)
        told += sum(tier["rows"] for tier in tiers)
    empty = [str(pmem) for pmem, count in rows_in_pmem.items() if not count]
    assert not empty, f"no row lies in {', '.join(empty)}"
    assert told == rows, f"the shards have {told} rows of {rows}"


def _resident_bytes(process: int, folder: Path) -> int:
    """Of the pages that are mapped from files under the folder."""
    resident, is_under = 0, False
    for line in Path(f"/proc/{process}/smaps").read_text().splitlines():
        name, _, rest = line.partition(" ")
        if not name.endswith(":"):  # a mapping's own line: its range, and in the end its file
            path = line.partition("/")
            is_under = Path(path[1] + path[2]).is_relative_to(folder)
        elif name == "Rss:" and is_under:
            resident += int(rest.split()[0]) << 10
    return resident
