"""Ray: the cluster that this program is at, or one of its own on this computer."""

from __future__ import annotations

import atexit
import os
import threading
import time
from typing import Any

from embstore.cluster.ray import private
from embstore.cluster.ray.head_probe import check_answers
from embstore.errors import EmbStoreError, MissingLibraryError
from embstore.table.closing_at_exit import close_all

__all__ = [
    "ADDRESS_VARIABLE",
    "LOOPBACK",
    "addresses",
    "authenticate",
    "connect",
    "join_or_start",
    "keep_to_loopback",
    "library",
    "offered",
    "start_on_loopback",
    "wait_for_answers",
]

ADDRESS_VARIABLE = "RAY_ADDRESS"
LOOPBACK = "127.0.0.1"
_OTHER_NODES = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # which Linux heeds too

# Rows don't go through Ray's own memory; what does is exports, and small.
_OWN_OBJECT_STORE_BYTES = 256 << 20

_ANSWERS_WITHIN_S = 2.0
_ASKED_EVERY_S = 0.5

_joining = threading.Lock()  # held while Ray starts: two starts at once end the program
_closes_first = False  # guarded by it


def library() -> Any:
    """The module `ray`; MissingLibraryError where it isn't installed."""
    try:
        import ray
    except ImportError as error:
        raise MissingLibraryError(
            "shards in other processes need Ray: pip install 'embstore[cluster]'"
        ) from error
    return ray


def join_or_start() -> Any:
    """The module `ray`, connected: to the cluster that the program called `ray.init()` for, or that
    RAY_ADDRESS names; else to one that ends with this program, on the loopback address. For any
    thread.
    """
    ray = library()
    with _joining:
        _close_variables_before_it_ends()
        if ray.is_initialized():
            return ray
        try:
            if address := os.environ.get(ADDRESS_VARIABLE):
                connect(ray, ADDRESS_VARIABLE, address)
            else:
                start_on_loopback(ray, object_store_memory=_OWN_OBJECT_STORE_BYTES)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise EmbStoreError(f"Ray can't be had: {error}") from error
    return ray


def connect(ray: Any, name: str, address: str, **options: Any) -> None:
    """Connects to a cluster that is there, at an address as RAY_ADDRESS may be.

    name: of the setting that gives the address; options as `ray.init` has them. Raises
    EmbStoreError where nothing answers there, or it wants another token.
    """
    if ":" in address and "//" not in address:
        check_answers(name, address)
        if address.rpartition(":")[0] in (LOOPBACK, "localhost"):
            keep_to_loopback()
        authenticate(ray, name, address)
    ray.init(address=address, **options)


def authenticate(ray: Any, name: str, address: str) -> None:
    """Shows the cluster the user's token where there is one: Ray does so only where it is asked to,
    or has found the cluster by itself. Raises EmbStoreError where the cluster wants another.
    """
    private.say_nothing_of_tokens()
    try:
        private.authenticate()
        private.check_token(address)
    except (ray.exceptions.RayError, RuntimeError) as error:
        told = " ".join(str(error).split())
        if "uthenticat" in told or "oken" in told:
            raise EmbStoreError(
                f"{name}: {address} wants the token of the user who started it; copy that one's "
                f"~/.ray/auth_token here: {told}"
            ) from error
        raise EmbStoreError(f"{name}: {address} can't be connected to: {told}") from error


def keep_to_loopback() -> None:
    """Ray 2.60 puts an address of the network in place of a loopback one that it is given, and then
    listens on every interface, unless it was told that there are to be no other computers.
    """
    os.environ[_OTHER_NODES] = "0"
    private.refuse_other_nodes()


def start_on_loopback(ray: Any, **options: Any) -> None:
    """Starts Ray where no other computer can reach it; options as `ray.init` has them."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is told to anybody
    keep_to_loopback()
    private.say_nothing_of_tokens()
    with private.without_idle_processes():
        ray.init(
            address="local",
            include_dashboard=False,
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


def wait_for_answers(ray: Any, within_s: float) -> None:
    """Returns when every node that Ray takes for living answers, or that time has passed. Of a node
    that died unseen Ray hears in half a minute; what it was asked to place there it doesn't place
    elsewhere then.
    """
    deadline = time.monotonic() + within_s
    while not all(_answers(node) for node in ray.nodes() if node["Alive"]):
        if time.monotonic() > deadline:
            return
        time.sleep(_ASKED_EVERY_S)


def _answers(node: dict[str, Any]) -> bool:
    address = f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"
    try:
        check_answers("node", address, _ANSWERS_WITHIN_S)
    except EmbStoreError:
        return False
    return True


def _close_variables_before_it_ends() -> None:
    """What is registered last is called first, and Ray was registered when it was imported."""
    global _closes_first
    if not _closes_first:
        atexit.register(close_all)
        _closes_first = True
