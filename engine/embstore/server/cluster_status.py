"""Asks for the status of a cluster's nodes, servers and shards, within a time limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from embstore.cluster import PMEM_RESOURCE
from embstore.cluster.ray import private
from embstore.cluster.server.status import (
    NAMESPACE,
    SERVER_NAME,
    STATUS_GROUP,
    ServerStatus,
    ShardStatus,
)

__all__ = ["ClusterStatus", "NodeStatus", "ServerReport", "ShardReport", "cluster_status"]

_GET_S = 1.0  # for an answer that has arrived


@dataclass(frozen=True)
class NodeStatus:
    node_id: str  # Ray's
    address: str
    is_alive: bool
    cpus: float
    pmem_gib: float  # that it offers


@dataclass(frozen=True)
class ServerReport:
    """A process that holds shards. requests: as in `ServerStatus`; empty if it doesn't answer."""

    node: str  # its address; "" if it isn't placed yet
    node_id: str
    process_id: int
    answers: bool
    requests: dict[str, int]


@dataclass(frozen=True)
class ShardReport:
    """A shard of a server that answers."""

    variable: str
    index: int
    shards: int
    node: str
    node_id: str
    process_id: int
    status: ShardStatus


@dataclass(frozen=True)
class ClusterStatus:
    nodes: list[NodeStatus]
    servers: list[ServerReport]
    shards: list[ShardReport]


def cluster_status(ray: Any, within_s: float) -> ClusterStatus:
    """Returns the status of the cluster that this process is connected to.

    within_s: seconds for all servers together; those that have not answered by then are listed as
        such.
    """
    nodes = [_node(node) for node in ray.nodes()]
    addresses = {node.node_id: node.address for node in nodes}
    places = {actor["Name"]: actor for actor in private.actors()}
    answers = {}
    for name in _server_names(ray):
        try:
            actor = ray.get_actor(name, namespace=NAMESPACE)
        except ValueError:
            continue  # ended meanwhile
        answers[name] = actor.status.options(concurrency_group=STATUS_GROUP).remote()
    if answers:
        ray.wait(list(answers.values()), num_returns=len(answers), timeout=within_s)
    servers: list[ServerReport] = []
    shards: list[ShardReport] = []
    for name, answer in answers.items():
        place = places.get(name, {})
        node_id = place.get("Address", {}).get("NodeID", "")
        where = addresses.get(node_id, ""), node_id, int(place.get("Pid", 0))
        try:
            status = _answered(ray, answer)
        except _EndedError:
            continue
        except TimeoutError:
            servers.append(ServerReport(*where, False, {}))
            continue
        servers.append(ServerReport(*where, True, status.requests))
        shards += [
            ShardReport(variable, index, count, *where, shard)
            for variable, index, count, shard in status.shards
        ]
    shards.sort(key=lambda shard: (shard.variable, shard.index, shard.process_id))
    return ClusterStatus(nodes, servers, shards)


class _EndedError(Exception):
    """The server ended while it was asked."""


def _answered(ray: Any, answer: Any) -> ServerStatus:
    ready, _ = ray.wait([answer], timeout=0)
    if not ready:
        raise TimeoutError
    try:
        status: ServerStatus = ray.get(answer, timeout=_GET_S)
    except ray.exceptions.RayActorError as error:
        raise _EndedError from error
    return status


def _server_names(ray: Any) -> list[str]:
    return sorted(
        actor["name"]
        for actor in ray.util.list_named_actors(all_namespaces=True)
        if actor["namespace"] == NAMESPACE and actor["name"].startswith(SERVER_NAME)
    )


def _node(node: dict[str, Any]) -> NodeStatus:
    resources = node["Resources"]
    return NodeStatus(
        node["NodeID"],
        node["NodeManagerAddress"],
        bool(node["Alive"]),
        float(resources.get("CPU", 0.0)),
        float(resources.get(PMEM_RESOURCE, 0.0)),
    )
