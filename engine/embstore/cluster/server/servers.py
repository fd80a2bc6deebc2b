"""The servers of a job, or of a program: processes that hold shards of all its tables."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from embstore.cluster.ray import cluster as ray_cluster
from embstore.cluster.ray import private
from embstore.cluster.ray.calls import first_line
from embstore.cluster.rows.connections import ServerAddress
from embstore.cluster.rows.pushes import PushRules
from embstore.cluster.server.handle import GPU_RESOURCE, ServerHandle, start_actors
from embstore.errors import MissingDeviceError, ShardLostError

__all__ = ["PMEM_RESOURCE", "Server", "Servers", "described_resources"]

PMEM_RESOURCE = "pmem"  # offered by a node, in GiB


@dataclass(eq=False)
class Server:
    """A server process. number: in the order in which the job or program started them. address:
    where it serves rows. shards: how many it has, or is about to have. has_opened: it has opened a
    shard.
    """

    number: int
    actor: ServerHandle
    address: ServerAddress
    node_id: str
    has_gpu: bool
    shards: int = 0
    has_opened: bool = False


class Servers:
    """The servers of a job or a program. The shards of one table go to different servers, and a
    server holds shards of many tables.

    There are thus as many servers as the table with the most shards has, or more if shards need
    certain nodes or a GPU. A server ends with its last shard. Thread-safe.
    """

    def __init__(self, rules: PushRules, silence_s: float = 30.0) -> None:
        self._rules = rules
        self._silence_s = silence_s
        self._numbers = itertools.count()
        self._lock = threading.Lock()  # held while servers are started
        self._servers: list[Server] = []  # guarded by _lock

    def take(
        self, variable: str, nodes: Sequence[str | None], has_gpu: bool, within_s: float
    ) -> list[Server]:
        """Returns a server for each shard of a variable, and starts the servers that are missing.

        nodes: for each shard Ray's id of the node that it has to be on; None: any.
        Raises MissingDeviceError if no node has room for a server within within_s.
        """
        with self._lock:
            chosen: list[Server | None] = []
            for node in nodes:
                fitting = [
                    server
                    for server in self._servers
                    if server.has_gpu == has_gpu
                    and node in (None, server.node_id)
                    and server not in chosen
                ]
                least = min(
                    fitting, key=lambda server: (server.shards, server.number), default=None
                )
                chosen.append(least)
            missing = [node for node, server in zip(nodes, chosen, strict=True) if server is None]
            started = iter(self._start(variable, missing, has_gpu, within_s) if missing else ())
            servers = [next(started) if server is None else server for server in chosen]
            for server in servers:
                server.shards += 1
            return servers

    def leave(self, server: Server) -> None:
        """Counts a shard that is closed, or won't be opened. Ends a server without shards."""
        with self._lock:
            server.shards -= 1
            if server.shards == 0:
                self._remove(server)

    def lose(self, server: Server) -> None:
        """Removes a server that is gone, so that nothing new goes there."""
        with self._lock:
            self._remove(server)

    def note_returned(self, worker: int) -> None:
        """Has no server wait any longer for a push of this worker of the job."""
        with self._lock:
            for server in self._servers:
                server.actor.note_returned(worker)

    def end(self) -> None:
        with self._lock:
            for server in list(self._servers):
                self._remove(server)

    def _remove(self, server: Server) -> None:
        if server in self._servers:
            self._servers.remove(server)
            server.actor.end()

    def _start(
        self, variable: str, nodes: Sequence[str | None], has_gpu: bool, within_s: float
    ) -> list[Server]:
        ray = ray_cluster.join_or_start()
        handles = start_actors(ray, nodes, has_gpu)
        try:
            started = [
                Server(
                    next(self._numbers),
                    actor,
                    actor.serve(self._rules, self._silence_s),
                    node_id,
                    has_gpu,
                )
                for actor, node_id in _wait_until_placed(ray, variable, handles, within_s)
            ]
        except BaseException:
            for handle in handles:
                ray.kill(handle)
            raise
        self._servers += started
        return started


def _wait_until_placed(
    ray: Any, variable: str, handles: Sequence[Any], within_s: float
) -> list[tuple[ServerHandle, str]]:
    """Returns each server with the id of its node. Raises ShardLostError if a server, or its node,
    dies before it has said where it is, and MissingDeviceError if no node has room in time.
    """
    try:
        nodes = ray.get([handle.node.remote() for handle in handles], timeout=within_s)
    except ray.exceptions.GetTimeoutError:
        if all(private.state_of_actor(handle) == "ALIVE" for handle in handles):
            raise ShardLostError(
                f"a server for {variable} has been started, and has given no sign of life for "
                f"{within_s:g} s"
            ) from None
        raise MissingDeviceError(
            f"shards: no node had room for {len(handles)} shards of {variable} within "
            f"{within_s:g} s; the cluster has {described_resources(ray)} left"
        ) from None
    except ray.exceptions.RayError as error:
        raise ShardLostError(
            f"a server for {variable} died as it was started: {first_line(error)}"
        ) from error
    hosts = ray_cluster.addresses(ray)
    if gone := [node for node, _ in nodes if node not in hosts]:
        raise ShardLostError(f"a server for {variable} is on node {gone[0]}, which is gone")
    return [
        (ServerHandle(handle, hosts[node], process_id), node)
        for handle, (node, process_id) in zip(handles, nodes, strict=True)
    ]


def described_resources(ray: Any) -> str:
    available = ray.available_resources()
    shown = ("CPU", GPU_RESOURCE, PMEM_RESOURCE)
    return ", ".join(f"{available[name]:g} of {name}" for name in shown if name in available)
