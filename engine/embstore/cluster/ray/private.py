"""What is used of Ray 2.60 that Ray doesn't document: to be looked at for another version."""

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
    """Ray warns that it heeds the user's token."""
    logging.getLogger(_TOKENS).setLevel(logging.ERROR)


def make_token() -> None:
    """Where tokens are asked for, and the user has none."""
    importlib.import_module(_TOKENS).ensure_token_if_auth_enabled(create_token_if_missing=True)


def authenticate() -> None:
    """Has this process show the user's token where there is one: Ray does so only where it is asked
    to, or has found the cluster by itself.
    """
    setup = importlib.import_module(_TOKENS)
    setup.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
    setup.ensure_token_if_auth_enabled(create_token_if_missing=False)


def check_token(address: str) -> None:
    """Is refused at once where the head wants another token. What connects tries for half a
    minute.
    """
    importlib.import_module("ray._raylet").GcsClient(address=address)


def refuse_other_nodes() -> None:
    """As the variable RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 has it when Ray is imported."""
    constants: Any = importlib.import_module("ray._private.ray_constants")
    constants.ENABLE_RAY_CLUSTER = False


def clusters_here() -> set[str]:
    """The addresses of the clusters that this computer has a node of, whoever started them."""
    found: set[str] = importlib.import_module("ray._private.services").find_gcs_addresses()
    return found


def actors() -> list[dict[str, Any]]:
    """All actors of the cluster, by Ray's own table: one that doesn't answer is there, too."""
    return list(importlib.import_module("ray._private.state").actors().values())


def state_of_actor(handle: Any) -> str:
    """ "ALIVE" where Ray has started it; "" where Ray doesn't know it."""
    told = importlib.import_module("ray._private.state").actors(handle._actor_id.hex())
    return str(told["State"]) if told else ""


@contextlib.contextmanager
def without_idle_processes() -> Iterator[None]:
    """A head that is started meanwhile lacks two processes, each of which takes 0.6 s of CPU to
    start: one starts computers of a cloud; the other, where there is no dashboard, only sends usage
    statistics.
    """
    node: Any = importlib.import_module("ray._private.node").Node
    starts = node.start_monitor, node.start_api_server
    node.start_monitor = node.start_api_server = lambda *_, **__: None
    try:
        yield
    finally:
        node.start_monitor, node.start_api_server = starts


def start_node(*, is_head: bool, **parameters: Any) -> Any:
    """What `ray start` does; but that puts other addresses in place of those that it is given, and
    has no second node on a loopback address.

    parameters: Ray's `RayParams`.
    """
    chosen = importlib.import_module("ray._private.parameter").RayParams(**parameters)
    with without_idle_processes():
        return importlib.import_module("ray._private.node").Node(
            chosen,
            head=is_head,
            shutdown_at_exit=False,
            spawn_reaper=True,  # ends its processes where this one is killed
        )
