"""Runs a node in the foreground until a signal ends it."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from types import FrameType

from embstore.cluster import PMEM_RESOURCE
from embstore.cluster.ray.cluster import ADDRESS_VARIABLE, LOOPBACK
from embstore.cluster.ray.head_probe import check_answers, host_and_port
from embstore.cluster.server.node_settings import NodeSettings
from embstore.errors import EmbStoreError, InvalidArgumentError
from embstore.server import ray_node
from embstore.server.bind_address import BindAddress
from embstore.server.pmem_place import PmemPlace
from embstore.table import checks

__all__ = ["serve"]

_MAX_CACHE_BYTES = 1 << 50
_CHECK_INTERVAL_S = 0.1
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def serve(arguments: list[str]) -> None:
    """Runs until SIGINT or SIGTERM. Raises EmbStoreError, and SystemExit for wrong arguments."""
    parsed = _parser().parse_args(arguments)
    master: str | None = parsed.master_endpoint
    bind = BindAddress.of(parsed.bind_ip)
    if master is None and bind.port is None:
        bind = BindAddress(bind.ip, ray_node.DEFAULT_PORT)
    place = None if parsed.pmem is None else PmemPlace.of(parsed.pmem)
    settings = NodeSettings(
        None if place is None else place.path, _cache_bytes(parsed.cache_size, parsed.pmem)
    )
    if master is not None:
        _check_reach(bind, master)
    bind.check_free()
    if master is not None:
        check_answers("--master_endpoint", master)
    resources: dict[str, float] = {}
    if place is not None:
        resources = {PMEM_RESOURCE: float(place.whole_gib), settings.place(bind.ip): 1.0}
    ending = _EndSignals()
    with ray_node.started(bind, master, resources, settings) as node:
        if not ending.is_asked_for:
            room = "" if place is None else f" with {place.whole_gib} GiB at {place.path}"
            print(
                f"embstore.server: {bind.ip} is ready{room}; workers set "
                f"{ADDRESS_VARIABLE}={node.address}",
                flush=True,
            )
        while not ending.is_asked_for and not (ended := node.ended()):
            time.sleep(_CHECK_INTERVAL_S)
        was_asked = ending.is_asked_for
        ending.begin()
        if not was_asked:
            raise EmbStoreError(
                f"Ray's {ended[0]} has ended, and with it this node: its head may be gone, or "
                f"{node.logs} says why"
            )
    print("embstore.server: ended", file=sys.stderr)


class _EndSignals:
    """A handler of SIGINT and SIGTERM. A start that is under way is completed, and then ended:
    Python may drop an exception that a signal handler raises. A second signal meanwhile ends this
    process at once, and the kernel then ends Ray's.
    """

    def __init__(self) -> None:
        self.is_asked_for = False
        for number in _SIGNALS:
            signal.signal(number, self._ask)

    def begin(self) -> None:
        """Ignores further signals, so that everything is ended."""
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self.is_asked_for = True
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)


def _check_reach(bind: BindAddress, master: str) -> None:
    host, _ = host_and_port("--master_endpoint", master)
    if (host == LOOPBACK) != bind.is_loopback:
        raise InvalidArgumentError(
            f"--bind_ip: nodes at {bind.ip} and {host} can't reach each other; give addresses of "
            "one network to both"
        )


def _cache_bytes(cache_size: str | None, pmem: str | None) -> int | None:
    if cache_size is None:
        return None
    if pmem is None:
        raise InvalidArgumentError("--cache_size is of the DRAM in front of --pmem; give that too")
    in_megabytes = f"{cache_size}M" if cache_size.isascii() and cache_size.isdigit() else cache_size
    return checks.size("--cache_size", in_megabytes, at_least=1 << 20, at_most=_MAX_CACHE_BYTES)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m embstore.server",
        description="Runs a node for shards of embedding variables until a signal ends it. "
        "`python -m embstore.server status` prints a cluster's status.",
    )
    parser.add_argument(
        "--bind_ip",
        default=LOOPBACK,
        metavar="IP[:PORT]",
        help=f"address of this computer (default: {LOOPBACK}). PORT: port of the cluster's head "
        f"(default: {ray_node.DEFAULT_PORT}), or of the raylet of a node that joins",
    )
    parser.add_argument("--pmem", metavar="DIR", help="folder that NODE_PMEM means on this node")
    parser.add_argument(
        "--cache_size",
        metavar="MB",
        help="DRAM (in 2**20 bytes, or a size like 4G) of each shard that uses --pmem and gives no "
        "size of its own",
    )
    parser.add_argument(
        "--master_endpoint",
        metavar="IP:PORT",
        help="address of the cluster to join (default: start a new one)",
    )
    return parser
