"""Connects to Ray: to the program's cluster, or to one that it starts on this computer."""

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
_OTHER_NODES = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # Linux heeds it too

# Rows don't go through Ray's object store; only exports do, and they are small.
_OWN_OBJECT_STORE_BYTES = 256 << 20

_ANSWERS_WITHIN_S = 2.0
_ASK_INTERVAL_S = 0.5

_joining = threading.Lock()  # held while Ray starts: two starts at once end the program
_is_close_registered = False  # guarded by _joining


def library() -> Any:
    """Returns the module `ray`. Raises MissingLibraryError if it isn't installed."""
    try:
        import ray
    except ImportError as error:
        raise MissingLibraryError(
            "shards in other processes need Ray: pip install 'embstore[cluster]'"
        ) from error
    return ray


def join_or_start() -> Any:
    """Returns the module `ray`, connected to the cluster that the program called `ray.init()` for
    or that RAY_ADDRESS names, else to a new one on the loopback address that ends with the program.
    Thread-safe.
    """
    ray = library()
    with _joining:
        _register_close_all()
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
    """Connects to a running cluster, at an address in any form that RAY_ADDRESS may have.

    name: the setting that gives the address, for errors. options: those of `ray.init`. Raises
    EmbStoreError if nothing answers there, or the cluster wants another token.
    """
    if ":" in address and "//" not in address:
        check_answers(name, address)
        if address.rpartition(":")[0] in (LOOPBACK, "localhost"):
            keep_to_loopback()
        authenticate(ray, name, address)
    ray.init(address=address, **options)


def authenticate(ray: Any, name: str, address: str) -> None:
    """Has this process send the user's token, if there is one: Ray does so only on request, or if
    it has found the cluster by itself. Raises EmbStoreError if the cluster wants another token.
    """
    private.say_nothing_of_tokens()
    try:
        private.authenticate()
        private.check_token(address)
    except (ray.exceptions.RayError, RuntimeError) as error:
        details = " ".join(str(error).split())
        if "uthenticat" in details or "oken" in details:
            raise EmbStoreError(
                f"{name}: {address} wants the token of the user who started it; copy that one's "
                f"~/.ray/auth_token here: {details}"
            ) from error
        raise EmbStoreError(f"{name}: {address} can't be connected to: {details}") from error


def keep_to_loopback() -> None:
    """Keeps Ray on the loopback address. Without this, Ray 2.60 replaces a loopback address by one
    of the network and listens on every interface.
    """
    os.environ[_OTHER_NODES] = "0"
    private.refuse_other_nodes()


def start_on_loopback(ray: Any, **options: Any) -> None:
    """Starts Ray where no other computer can reach it. options: those of `ray.init`."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # sends no statistics
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
    """Returns how much of a resource each living node has, without the nodes that have none."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [node[resource] for node in nodes if node.get(resource)]


def addresses(ray: Any) -> dict[str, str]:
    """Returns for each living node, by its id, the address that the cluster knows."""
    return {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}


def wait_for_answers(ray: Any, within_s: float) -> None:
    """Returns when every node that Ray considers alive answers, or after within_s. Ray notices a
    node's silent death after half a minute; what it places there in the meantime, it does not place
    elsewhere.
    """
    deadline = time.monotonic() + within_s
    while not all(_answers(node) for node in ray.nodes() if node["Alive"]):
        if time.monotonic() > deadline:
            return
        time.sleep(_ASK_INTERVAL_S)


def _answers(node: dict[str, Any]) -> bool:
    address = f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"
    try:
        check_answers("node", address, _ANSWERS_WITHIN_S)
    except EmbStoreError:
        return False
    return True


def _register_close_all() -> None:
    """Registers close_all to run before Ray's own exit handler. Python runs the handler that was
    registered last first, and Ray's was registered when Ray was imported.
    """
    global _is_close_registered
    if not _is_close_registered:
        atexit.register(close_all)
        _is_close_registered = True
