"""Chooses a server for each shard of a variable, on a node that has what the shard needs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from embstore.cluster.ray import cluster as ray_cluster
from embstore.cluster.rows.connections import ServerAddress
from embstore.cluster.server.actor import ShardPlace
from embstore.cluster.server.handle import GPU_RESOURCE, ServerHandle
from embstore.cluster.server.servers import PMEM_RESOURCE, Server, Servers, described_resources
from embstore.errors import InvalidArgumentError, MissingDeviceError, ShardLostError
from embstore.gpu.choice import CUDA, EMULATED
from embstore.options import NODE_PMEM, Tier, TierKind
from embstore.table.shard import ShardSpec

__all__ = ["OpenShard", "ShardPlacement"]

_PMEM = (TierKind.PMEM_LIBPMEM, TierKind.PMEM_MEMKIND, TierKind.PMEM_POOL)

_PLACED_WITHIN_S = 60.0
_LOOK_INTERVAL_S = 0.5
_MIN_FRACTION = 0.0001  # the smallest fraction of a resource that Ray counts


@dataclass(frozen=True)
class OpenShard:
    """A shard at a server. actor, server, address: its server's handle, number and address. table:
    the shard's number there. place: a resource that only its node has; persisted rows are found by
    it.
    """

    actor: ServerHandle
    server: int
    address: ServerAddress
    table: int
    place: str


class ShardPlacement:
    """The placement of one variable's shards. Servers for all of them are taken when the first is
    opened: by then all arguments have been checked.
    """

    def __init__(
        self,
        variable: str,
        count: int,
        tiers: Sequence[Tier],
        servers: Servers,
        silence_s: float = 30.0,
        freed_within_s: float = 0.0,
        places: Sequence[str] = (),
    ) -> None:
        """places: for each shard the node that it has to be on; empty: any."""
        self._variable = variable
        self.count = count
        self._tiers = list(tiers)
        self._servers = servers
        self._silence_s = silence_s
        self._freed_within_s = freed_within_s
        self._places = list(places)
        self._reservation: _Reservation | None = None
        self._waiting: list[Server] | None = None
        self._nodes: list[str | None] = []
        self._has_gpu = False
        self._next = 0  # the shard that is opened next
        self._open: dict[OpenShard, Server] = {}

    def open(self, spec: ShardSpec) -> OpenShard:
        """Makes the next shard of the variable, and returns it."""
        if self._waiting is None:
            self._waiting = self._take_servers(spec.gpu)
        elif not self._waiting:  # end() was called after an open that failed
            nodes = self._nodes[self._next :]
            self._waiting = self._servers.take(
                self._variable, nodes, self._has_gpu, _PLACED_WITHIN_S
            )
        server = self._waiting.pop(0)
        while True:
            try:
                shard = self._open_at(server, spec)
            except ShardLostError:
                self._servers.lose(server)
                if not server.has_opened:
                    raise
                # The server died earlier, and this call is the first to notice.
                (server,) = self._servers.take(
                    *(self._variable, [self._nodes[self._next]]), self._has_gpu, _PLACED_WITHIN_S
                )
            except BaseException:
                self._servers.leave(server)
                raise
            else:
                self._next += 1
                self._open[shard] = server
                return shard

    def leave(self, shard: OpenShard) -> None:
        """Releases a shard that is closed or lost."""
        server = self._open.pop(shard, None)
        if server is not None:
            self._servers.leave(server)
        self._end_unused_reservation()

    def end(self) -> None:
        """Releases the servers that were taken for shards that won't be opened."""
        for server in self._waiting or ():
            self._servers.leave(server)
        self._waiting = []
        self._end_unused_reservation()

    def end_all(self) -> None:
        """Forgets the open shards too, since their servers are about to end."""
        self._open = {}
        self.end()

    def _open_at(self, server: Server, spec: ShardSpec) -> OpenShard:
        place = ShardPlace(
            self._variable, self._next, self.count, self._tiers, self._freed_within_s
        )
        answer = server.actor.open(spec, place, silence_s=self._silence_s)
        server.has_opened = True
        if answer.error is not None:
            raise answer.error
        table, node = answer.value
        return OpenShard(server.actor, server.number, server.address, table, node)

    def _end_unused_reservation(self) -> None:
        if self._reservation is not None and not self._open and not self._waiting:
            self._reservation.end()
            self._reservation = None

    def _take_servers(self, gpu: str | None) -> list[Server]:
        """Takes a server for each shard. gpu: the device of an HBM tier; None without one."""
        ray = ray_cluster.join_or_start()
        resources = self._resources(ray)
        self._has_gpu = self._needs_gpu(ray, gpu)
        self._wait_for_places(ray)
        self._nodes = [None] * self.count
        if resources or self._places:
            if self._has_gpu:
                resources[GPU_RESOURCE] = _MIN_FRACTION
            ray_cluster.wait_for_answers(ray, _PLACED_WITHIN_S)
            places: Sequence[str | None] = self._places or [None] * self.count
            self._reservation = _Reservation(
                ray,
                self._variable,
                [
                    resources if place is None else {**resources, place: _MIN_FRACTION}
                    for place in places
                ],
                _PLACED_WITHIN_S,
            )
            self._nodes = list(self._reservation.nodes)
        try:
            return self._servers.take(self._variable, self._nodes, self._has_gpu, _PLACED_WITHIN_S)
        except BaseException:
            self._waiting = []
            self._end_unused_reservation()
            self._waiting = None
            raise

    def _wait_for_places(self, ray: Any) -> None:
        """Waits for the nodes that hold persisted shards: an ended node may be restarting."""
        deadline = time.monotonic() + _PLACED_WITHIN_S
        while missing := [place for place in self._places if not ray_cluster.offered(ray, place)]:
            if time.monotonic() > deadline:
                raise MissingDeviceError(
                    f"shards: {self._variable} was persisted at {missing[0]}, and the cluster has "
                    f"had no such node for {_PLACED_WITHIN_S:g} s; start its server again"
                )
            time.sleep(_LOOK_INTERVAL_S)

    def _resources(self, ray: Any) -> dict[str, float]:
        """Returns the resources that each shard needs on its node. If no node offers `pmem`, every
        node is assumed to have enough.
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
        needed_gib = round(size_bytes / (1 << 30), 4) or _MIN_FRACTION
        if needed_gib > max(nodes_gib):
            raise MissingDeviceError(
                f"storage_size: a shard of {self._variable} needs {needed_gib:g} GiB of PMem, and "
                f"no node of the cluster has more than {max(nodes_gib):g} (its resource "
                f"{PMEM_RESOURCE!r}); give a smaller size, and more shards"
            )
        return {PMEM_RESOURCE: needed_gib}

    def _needs_gpu(self, ray: Any, gpu: str | None) -> bool:
        """Returns whether a shard needs a GPU. gpu: the device of an HBM tier; None without one."""
        if gpu in (None, EMULATED):
            return False
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
        return True


class _Reservation:
    """A reservation of nodes' resources, such as PMem, for one variable's shards: Ray then gives
    them to nothing else. The servers reserve nothing themselves, since they may hold shards of more
    and more tables. Ray frees the reservation when the process that made it ends.

    nodes: Ray's id of each shard's node; all different if there are enough nodes.
    """

    def __init__(
        self, ray: Any, variable: str, needed: Sequence[dict[str, float]], within_s: float
    ) -> None:
        """needed: for each shard, amounts by Ray's names of resources.

        Raises MissingDeviceError if the nodes don't have that much free within within_s.
        """
        self._group = ray.util.placement_group(list(needed), strategy="SPREAD")
        try:
            if not self._group.wait(within_s):
                raise MissingDeviceError(
                    f"shards: no node had room for {len(needed)} shards of {variable} within "
                    f"{within_s:g} s; the cluster has {described_resources(ray)} left"
                )
            table = ray.util.placement_group_table(self._group)
            of_bundles: dict[int, str] = table["bundles_to_node_id"]
            self.nodes = [of_bundles[i] for i in range(len(needed))]
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        ray = ray_cluster.library()
        if ray.is_initialized():
            with contextlib.suppress(Exception):  # the group may be gone already
                ray.util.remove_placement_group(self._group)
