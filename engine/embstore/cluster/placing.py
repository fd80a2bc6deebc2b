"""Where the shards of a variable go: each becomes an actor on a node that has what it needs."""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from embstore._gpu import CUDA, EMULATED
from embstore._shard import ShardSpec
from embstore.cluster import ray_cluster
from embstore.cluster.connections import ServerAddress
from embstore.cluster.pushes import PushRules
from embstore.cluster.ray_actor import GPU_RESOURCE, RayActor, first_line, start_actors
from embstore.cluster.shard_actor import ShardPlace
from embstore.errors import InvalidArgumentError, MissingDeviceError, ShardLostError
from embstore.options import NODE_PMEM, Tier, TierKind

__all__ = ["PMEM_RESOURCE", "OpenShard", "Placing"]

PMEM_RESOURCE = "pmem"  # of a node, in GiB
_PMEM = (TierKind.PMEM_LIBPMEM, TierKind.PMEM_MEMKIND, TierKind.PMEM_POOL)

_PLACED_WITHIN_S = 60.0
_LOOKED_FOR_EVERY_S = 0.5
_A_LITTLE = 0.0001  # as finely as Ray counts


@dataclass(frozen=True)
class OpenShard:
    """address: where it serves its rows. place: a resource that its node has and no other, by which
    it comes back to what it keeps there.
    """

    actor: RayActor
    address: ServerAddress
    place: str


class Placing:
    """Of one variable. Starts as many actors as it has shards when the first is asked for: by then
    every argument is known to be good.
    """

    def __init__(
        self,
        variable: str,
        count: int,
        tiers: Sequence[Tier],
        rules: PushRules,
        silence_s: float = 30.0,
        freed_within_s: float = 0.0,
        places: Sequence[str] = (),
    ) -> None:
        """places: of each shard, where it has to be; none: anywhere."""
        self._variable = variable
        self._count = count
        self._tiers = list(tiers)
        self._rules = rules
        self._silence_s = silence_s
        self._freed_within_s = freed_within_s
        self._places = list(places)
        self._waiting: list[RayActor] | None = None

    def open(self, spec: ShardSpec) -> OpenShard:
        """Makes the next shard."""
        if self._waiting is None:
            self._waiting = self._start(spec.gpu)
        actor = self._waiting.pop(0)
        try:
            place = ShardPlace(self._variable, self._count, self._tiers, self._freed_within_s)
            answer = actor.open(spec, place, actor.node, self._rules, silence_s=self._silence_s)
            if answer.error is not None:
                raise answer.error
            address, place = answer.value
            return OpenShard(actor, address, place)
        except BaseException:
            actor.end()
            raise

    def end(self) -> None:
        """Of those actors that hold no shard."""
        for actor in self._waiting or ():
            actor.end()

    def _start(self, gpu: str | None) -> list[RayActor]:
        """gpu: of a tier of HBM; None without one."""
        ray = ray_cluster.join_or_start()
        resources = {**self._resources(ray), **self._gpu_share(ray, gpu)}
        self._wait_for_places(ray)
        needed = [
            {**resources, self._places[i]: _A_LITTLE} if self._places else resources
            for i in range(self._count)
        ]
        handles = start_actors(ray, self._variable, needed)
        try:
            return self._placed(ray, handles)
        except BaseException:
            for handle in handles:
                ray.kill(handle)
            raise

    def _wait_for_places(self, ray: Any) -> None:
        """A node that was ended may be on its way back."""
        deadline = time.monotonic() + _PLACED_WITHIN_S
        while missing := [place for place in self._places if not ray_cluster.offered(ray, place)]:
            if time.monotonic() > deadline:
                raise MissingDeviceError(
                    f"shards: {self._variable} was persisted at {missing[0]}, and the cluster has "
                    f"had no such node for {_PLACED_WITHIN_S:g} s; start its server again"
                )
            time.sleep(_LOOKED_FOR_EVERY_S)

    def _placed(self, ray: Any, handles: Sequence[Any]) -> list[RayActor]:
        """ShardLostError where one, or its node, dies before it can say where it is."""
        try:
            nodes = ray.get([handle.node.remote() for handle in handles], timeout=_PLACED_WITHIN_S)
        except ray.exceptions.GetTimeoutError:
            if all(_has_started(handle) for handle in handles):
                raise ShardLostError(
                    f"a shard of {self._variable} has been started, and has given no sign of life "
                    f"for {_PLACED_WITHIN_S:g} s"
                ) from None
            raise MissingDeviceError(
                f"shards: no node had room for {self._count} shards of {self._variable} within "
                f"{_PLACED_WITHIN_S:g} s; the cluster has {_described(ray)} left"
            ) from None
        except ray.exceptions.RayError as error:
            raise ShardLostError(
                f"a shard of {self._variable} died as it was started: {first_line(error)}"
            ) from error
        hosts = ray_cluster.addresses(ray)
        if gone := [node for node, _ in nodes if node not in hosts]:
            raise ShardLostError(f"a shard of {self._variable} is on node {gone[0]}, which is gone")
        return [
            RayActor(handle, hosts[node], process_id)
            for handle, (node, process_id) in zip(handles, nodes, strict=True)
        ]

    def _resources(self, ray: Any) -> dict[str, float]:
        """What a shard needs of its node; a cluster without nodes that say what PMem they have is
        trusted to have it.
        """
        size_bytes = sum(tier.size_bytes or 0 for tier in self._tiers if tier.kind in _PMEM)
        nodes_gib = ray_cluster.offered(ray, PMEM_RESOURCE)
        needs_path = any(tier.path == NODE_PMEM for tier in self._tiers)
        if needs_path and not nodes_gib:
            raise MissingDeviceError(
                f"storage_path: no node of the cluster has PMem that {self._variable} could lie on "
                "by NODE_PMEM; start nodes by python -m embstore.server --pmem DIRECTORY"
            )
        if not nodes_gib or not (size_bytes or needs_path):
            return {}
        needed_gib = round(size_bytes / (1 << 30), 4) or _A_LITTLE
        if needed_gib > max(nodes_gib):
            raise MissingDeviceError(
                f"storage_size: a shard of {self._variable} needs {needed_gib:g} GiB of PMem, and "
                f"no node of the cluster has more than {max(nodes_gib):g} (its resource "
                f"{PMEM_RESOURCE!r}); give a smaller size, and more shards"
            )
        return {PMEM_RESOURCE: needed_gib}

    def _gpu_share(self, ray: Any, gpu: str | None) -> dict[str, float]:
        """Returns what a shard needs of a GPU. Ray hides all others from its process, and shards of
        many tables may share one, so they ask for a little.
        """
        if gpu in (None, EMULATED):
            return {}
        if gpu != CUDA:
            raise InvalidArgumentError(
                f'device must be "{CUDA}" or "{EMULATED}" with shards, since Ray chooses the GPU '
                f"of each; got {gpu!r}"
            )
        if not ray_cluster.offered(ray, GPU_RESOURCE):
            raise MissingDeviceError(
                f"device: {self._variable} has a tier of HBM, and no node of the cluster offers a "
                f"GPU (Ray's resource {GPU_RESOURCE!r}); start Ray on computers that have one, or "
                f'give device="{EMULATED}" to try without'
            )
        return {GPU_RESOURCE: _A_LITTLE}


def _has_started(handle: Any) -> bool:
    """Whether Ray has found it a place."""
    told = importlib.import_module("ray._private.state").actors(handle._actor_id.hex())
    return bool(told) and told["State"] == "ALIVE"


def _described(ray: Any) -> str:
    left = ray.available_resources()
    shown = ("CPU", GPU_RESOURCE, PMEM_RESOURCE)
    return ", ".join(f"{left[name]:g} of {name}" for name in shown if name in left)
