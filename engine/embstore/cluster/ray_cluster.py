"""Ray: the cluster that this program is at, or one of its own on this computer."""

from __future__ import annotations

import atexit
import importlib
import os
from typing import Any

from embstore._closing_at_exit import close_all
from embstore.errors import EmbStoreError, MissingLibraryError

__all__ = ["addresses", "join_or_start", "library", "offered", "start_on_loopback"]

LOOPBACK = "127.0.0.1"
_OTHER_NODES = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # which Linux heeds too

# Rows don't go through Ray's own memory; what does is exports, and small.
_OWN_OBJECT_STORE_BYTES = 256 << 20

_closes_first = False


def library() -> Any:
    """The module `ray`; MissingLibraryError where it isn't installed."""
    try:
        import ray
    except ImportError as error:
        raise MissingLibraryError(
            "shards in other processes need Ray: pip install 'pmemlab[cluster]'"
        ) from error
    return ray


def join_or_start() -> Any:
    """The module `ray`, connected: to the cluster that the program called `ray.init()` for, or that
    RAY_ADDRESS names; else to one that ends with this program, on the loopback address.
    """
    ray = library()
    _close_variables_before_it_ends()
    if ray.is_initialized():
        return ray
    try:
        if os.environ.get("RAY_ADDRESS"):
            ray.init(log_to_driver=False)
        else:
            start_on_loopback(ray, object_store_memory=_OWN_OBJECT_STORE_BYTES)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise EmbStoreError(f"Ray can't be had: {error}") from error
    return ray


def start_on_loopback(ray: Any, **options: Any) -> None:
    """Starts Ray on this computer, where nobody else can reach it; options as `ray.init` has them.

    Ray 2.60 puts an address of the network in place of a loopback one that it is given, and then
    listens on every interface, unless it was told that there are to be no other nodes.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is told to anybody
    os.environ[_OTHER_NODES] = "0"
    # What the variable was when Ray was imported.
    importlib.import_module("ray._private.ray_constants").ENABLE_RAY_CLUSTER = False  # type: ignore[attr-defined]
    ray.init(
        address="local",
        include_dashboard=False,
        log_to_driver=False,
        _node_ip_address=LOOPBACK,
        **options,
    )
    (address,) = addresses(ray).values()
    if address != LOOPBACK:
        ray.shutdown()
        raise EmbStoreError(
            f"Ray {ray.__version__} started on {address} rather than on {LOOPBACK}; install the "
            "version that constraints.txt names, or call ray.init() yourself"
        )


def offered(ray: Any, resource: str) -> list[float]:
    """How much of a resource each living node has, as long as it has any."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [node[resource] for node in nodes if node.get(resource)]


def addresses(ray: Any) -> dict[str, str]:
    """By the id of each living node the address that the cluster has for it."""
    return {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}


def _close_variables_before_it_ends() -> None:
    """What is registered last is called first, and Ray was registered when it was imported."""
    global _closes_first
    if not _closes_first:
        atexit.register(close_all)
        _closes_first = True
