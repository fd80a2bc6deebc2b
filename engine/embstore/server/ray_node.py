"""This computer's node of a Ray cluster, kept for the duration of a block."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from embstore.cluster.ray import cluster as ray_cluster
from embstore.cluster.ray import private
from embstore.cluster.server.node_settings import NodeSettings
from embstore.errors import EmbStoreError
from embstore.server import process_tree
from embstore.server.bind_address import BindAddress

__all__ = ["DEFAULT_PORT", "RayNode", "started"]

DEFAULT_PORT = 6379  # Ray's default port of a head
_ENDED_WITHIN_S = 5.0
_ESSENTIAL = ("raylet", "gcs_server")


class RayNode:
    """A running node. address: that of the cluster's head."""

    def __init__(self, node: Any) -> None:
        self._node = node
        self.address: str = node.address

    def ended(self) -> list[str]:
        """Returns the names of ended processes without which the node can't work."""
        return [kind for kind, _ in self._node.dead_processes() if kind in _ESSENTIAL]

    @property
    def logs(self) -> str:
        return str(self._node.get_logs_dir_path())


@contextlib.contextmanager
def started(
    bind: BindAddress, master: str | None, resources: dict[str, float], settings: NodeSettings
) -> Iterator[RayNode]:
    """Starts a head, or with a master another node of its cluster, for the block. Afterwards all
    its processes have ended, also those of workers and shards, and no other processes.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # sends no statistics
    if master is None:
        os.environ.setdefault("RAY_AUTH_MODE", "token")  # read when Ray is imported
    ray = ray_cluster.library()
    if bind.is_loopback:
        ray_cluster.keep_to_loopback()
    process_tree.adopt_orphans()
    node: Any = None
    try:
        try:
            node = _start(ray, bind, master, resources, settings)
        except EmbStoreError:
            raise
        except Exception as error:
            raise EmbStoreError(_described(error, master)) from error
        yield RayNode(node)
    finally:
        if node is not None:
            node.kill_all_processes(check_alive=False, allow_graceful=True, wait=True)
        # Ray's agents would otherwise try for a minute or two to reach the killed processes.
        below = process_tree.descendants(os.getpid())
        if left := process_tree.end(below, _ENDED_WITHIN_S):
            numbers = ", ".join(str(process.number) for process in left)
            raise EmbStoreError(f"these processes don't end: {numbers}")


def _start(
    ray: Any,
    bind: BindAddress,
    master: str | None,
    resources: dict[str, float],
    settings: NodeSettings,
) -> Any:
    if master is None:
        private.make_token()
    else:
        ray_cluster.authenticate(ray, "--master_endpoint", master)
    return private.start_node(
        is_head=master is None,
        node_ip_address=bind.ip,
        gcs_server_port=bind.port if master is None else None,
        gcs_address=master,
        node_manager_port=(bind.port or 0) if master is not None else 0,
        resources=resources,
        include_dashboard=False,
        include_log_monitor=False,
        env_vars=settings.environment(),
    )


def _described(error: Exception, master: str | None) -> str:
    message = " ".join(str(error).split()) or type(error).__name__
    if master is None:
        return f"--bind_ip: Ray can't be started: {message}"
    if "ersion mismatch" in message:
        return (
            f"--master_endpoint: {master} runs another Ray or Python, and every node and worker "
            f"needs the same; install those that it has: {message}"
        )
    return f"--master_endpoint: {master} can't be joined: {message}"
