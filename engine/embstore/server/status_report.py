"""A cluster's status as tables, with rich where it is installed, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from embstore.cluster.rows.wire import Request
from embstore.cluster.server.counted_shard import WINDOW_S
from embstore.server.cluster_status import ClusterStatus, ServerReport, ShardReport

__all__ = ["as_json", "print_tables"]

_Rows = list[list[str]]


_NODES = ["node", "alive", "CPUs", "PMem (GiB)", "servers"]
_SERVERS = ["server", "node", "shards", "look-up requests", "update requests"]
_SHARDS = ["variable", "shard", "node", "process", "rows", "memory", "looked up/s", "applied/s"]
_NUMBERS = {
    *("CPUs", "PMem (GiB)", "servers", "server", "shards", "look-up requests", "update requests"),
    *("process", "rows", "looked up/s", "applied/s"),
}
_LOOK_UPS = (Request.SERVE, Request.LOOK_UP)
_UPDATES = (Request.APPLY, Request.PREPARE)


def as_json(status: ClusterStatus) -> str:
    """Returns the fields of `ClusterStatus`, and window_s, which the rates are averages over."""
    return json.dumps({**asdict(status), "window_s": WINDOW_S}, indent=1)


def print_tables(status: ClusterStatus) -> None:
    nodes = [
        [
            node.address,
            "yes" if node.is_alive else "no",
            f"{node.cpus:g}",
            f"{node.pmem_gib:g}" if node.pmem_gib else "-",
            str(sum(server.node_id == node.node_id for server in status.servers)),
        ]
        for node in status.nodes
    ]
    _print("nodes", _NODES, nodes)
    if not status.servers:
        print("no servers")
        return
    servers = [_server_row(server, status.shards) for server in status.servers]
    _print("servers, by their processes", _SERVERS, servers)
    if status.shards:
        title = f"shards; ids a second over the last {WINDOW_S} s"
        _print(title, _SHARDS, [_shard_row(shard) for shard in status.shards])


def _server_row(server: ServerReport, shards: Sequence[ShardReport]) -> list[str]:
    where = [str(server.process_id or "-"), server.node or "-"]
    if not server.answers:
        return [*where, "does not answer", "-", "-"]
    held = [
        shard
        for shard in shards
        if (shard.node_id, shard.process_id) == (server.node_id, server.process_id)
    ]
    return [*where, str(len(held)), _count(server, _LOOK_UPS), _count(server, _UPDATES)]


def _count(server: ServerReport, kinds: Sequence[Request]) -> str:
    return f"{sum(server.requests.get(kind.name, 0) for kind in kinds):,}"


def _shard_row(shard: ShardReport) -> list[str]:
    where = [
        shard.variable,
        f"{shard.index} of {shard.shards}",
        shard.node or "-",
        str(shard.process_id or "-"),
    ]
    status = shard.status
    memory = [f"{tier.kind} {_size(tier.bytes)}" for tier in status.tiers]
    return [
        *where,
        f"{status.rows:,}",
        "\n".join([*memory, f"index {_size(status.index_bytes)}"]),
        f"{status.looked_up_ids_per_s:,.0f}",
        f"{status.applied_ids_per_s:,.0f}",
    ]


def _size(count: float) -> str:
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while count >= 1024 and len(units) > 1:
        count /= 1024
        del units[0]
    return f"{count:.4g} {units[0]}"


def _print(title: str, columns: list[str], rows: _Rows) -> None:
    try:
        from rich.table import Table

        from embstore.printing import print_table
    except ImportError:  # the engine itself requires only numpy
        _print_plain(title, columns, rows)
        return
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right" if column in _NUMBERS else "left")
    for row in rows:
        table.add_row(*row)
    print_table(table)


def _print_plain(title: str, columns: list[str], rows: _Rows) -> None:
    rows = [[cell.replace("\n", ", ") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    print(title)
    for row in (columns, *rows):
        cells = [
            cell.rjust(width) if column in _NUMBERS else cell.ljust(width)
            for column, cell, width in zip(columns, row, widths, strict=True)
        ]
        print("  ".join(cells).rstrip())
    print()
