"""All uses of Ray 2.60 that Ray doesn't document. Check them for every other version."""

from __future__ import annotations

import contextlib
import importlib
import logging
from collections.abc import Iterator
from typing import Any

__all__ = [
    "actors",
    "authenticate",
    "check_token",
    "clusters_here",
    "make_token",
    "refuse_other_nodes",
    "say_nothing_of_tokens",
    "start_node",
    "state_of_actor",
    "without_idle_processes",
]

_TOKENS = "ray._private.authentication.authentication_token_setup"


def say_nothing_of_tokens() -> None:
    """Silences Ray's warning that it uses the user's token."""
    logging.getLogger(_TOKENS).setLevel(logging.ERROR)


def make_token() -> None:
    """Makes a token if authentication is enabled and the user has none."""
    importlib.import_module(_TOKENS).ensure_token_if_auth_enabled(create_token_if_missing=True)


def authenticate() -> None:
    """Has this process send the user's token, if there is one: Ray does so only on request, or if
    it has found the cluster by itself.
    """
    setup = importlib.import_module(_TOKENS)
    setup.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
    setup.ensure_token_if_auth_enabled(create_token_if_missing=False)


def check_token(address: str) -> None:
    """Raises at once if the head wants another token. Connecting would retry for half a minute."""
    importlib.import_module("ray._raylet").GcsClient(address=address)


def refuse_other_nodes() -> None:
    """Has the effect that RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 has when Ray is imported."""
    constants: Any = importlib.import_module("ray._private.ray_constants")
    constants.ENABLE_RAY_CLUSTER = False


def clusters_here() -> set[str]:
    """Returns the addresses of all clusters, of any user, that have a node on this computer."""
    found: set[str] = importlib.import_module("ray._private.services").find_gcs_addresses()
    return found


def actors() -> list[dict[str, Any]]:
    """Returns all actors of the cluster from Ray's own table, which has unresponsive ones too."""
    return list(importlib.import_module("ray._private.state").actors().values())


def state_of_actor(handle: Any) -> str:
    """Returns "ALIVE" if Ray has started the actor, and "" if Ray doesn't know it."""
    actor_info = importlib.import_module("ray._private.state").actors(handle._actor_id.hex())
    return str(actor_info["State"]) if actor_info else ""


@contextlib.contextmanager
def without_idle_processes() -> Iterator[None]:
    """Has a head that is started in the block omit two processes that each take 0.6 s of CPU to
    start: one starts cloud computers; the other, without a dashboard, only sends usage statistics.
    """
    node: Any = importlib.import_module("ray._private.node").Node
    starts = node.start_monitor, node.start_api_server
    node.start_monitor = node.start_api_server = lambda *_, **__: None
    try:
        yield
    finally:
        node.start_monitor, node.start_api_server = starts


def start_node(*, is_head: bool, **parameters: Any) -> Any:
    """Starts a node as `ray start` does, which can't be used: it replaces the addresses that it is
    given, and starts no second node on a loopback address.

    parameters: Ray's `RayParams`.
    """
    chosen = importlib.import_module("ray._private.parameter").RayParams(**parameters)
    with without_idle_processes():
        return importlib.import_module("ray._private.node").Node(
            chosen,
            head=is_head,
            shutdown_at_exit=False,
            spawn_reaper=True,  # ends the node's processes if this one is killed
        )
