"""How the nodes and shards of a cluster are doing, asked within a time that is set."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from embstore.cluster import PMEM_RESOURCE
from embstore.cluster.shard_status import NAMESPACE, STATUS_GROUP, ShardName, ShardStatus

__all__ = ["ClusterStatus", "NodeStatus", "ShardReport", "cluster_status"]

_GET_S = 1.0  # for an answer that is there


@dataclass(frozen=True)
class NodeStatus:
    node_id: str  # Ray's
    address: str
    is_alive: bool
    cpus: float
    pmem_gib: float  # that it said to have


@dataclass(frozen=True)
class ShardReport:
    variable: str
    index: int
    shards: int
    node: str  # its address; "" where it has none yet
    node_id: str
    process_id: int
    answers: bool
    status: ShardStatus | None  # None too where it isn't open


@dataclass(frozen=True)
class ClusterStatus:
    nodes: list[NodeStatus]
    shards: list[ShardReport]


def cluster_status(ray: Any, within_s: float) -> ClusterStatus:
    """Of the cluster that this process is connected to. Shards that don't answer in that time, all
    together, are said not to."""
    nodes = [_node(node) for node in ray.nodes()]
    addresses = {node.node_id: node.address for node in nodes}
    # Ray's own table, since one that doesn't answer can't say where it is.
    table = importlib.import_module("ray._private.state").actors().values()
    places = {actor["Name"]: actor for actor in table}
    asked = {}
    for name in _shard_names(ray):
        try:
            actor = ray.get_actor(name.text, namespace=NAMESPACE)
        except ValueError:
            continue  # ended meanwhile
        asked[name] = actor.status.options(concurrency_group=STATUS_GROUP).remote()
    if asked:
        ray.wait(list(asked.values()), num_returns=len(asked), timeout=within_s)
    reports = []
    for name, answer in asked.items():
        place = places.get(name.text, {})
        node_id = place.get("Address", {}).get("NodeID", "")
        try:
            status = _answered(ray, answer)
        except _EndedError:
            continue
        except TimeoutError:
            answers, status = False, None
        else:
            answers = True
        reports.append(
            ShardReport(
                name.variable,
                name.index,
                name.shards,
                addresses.get(node_id, ""),
                node_id,
                int(place.get("Pid", 0)),
                answers,
                status,
            )
        )
    return ClusterStatus(nodes, reports)


class _EndedError(Exception):
    """The shard, while it was asked."""


def _answered(ray: Any, answer: Any) -> ShardStatus | None:
    ready, _ = ray.wait([answer], timeout=0)
    if not ready:
        raise TimeoutError
    try:
        status: ShardStatus | None = ray.get(answer, timeout=_GET_S)
    except ray.exceptions.RayActorError as error:
        raise _EndedError from error
    return status


def _shard_names(ray: Any) -> list[ShardName]:
    names = []
    for actor in ray.util.list_named_actors(all_namespaces=True):
        if actor["namespace"] == NAMESPACE:
            try:
                names.append(ShardName.of(actor["name"]))
            except ValueError:
                continue  # not one of ours
    return sorted(names, key=lambda name: (name.variable, name.unique, name.index))


def _node(node: dict[str, Any]) -> NodeStatus:
    resources = node["Resources"]
    return NodeStatus(
        node["NodeID"],
        node["NodeManagerAddress"],
        bool(node["Alive"]),
        float(resources.get("CPU", 0.0)),
        float(resources.get(PMEM_RESOURCE, 0.0)),
    )
