"""Reserves resources of nodes, such as PMem, for shards: Ray then gives them to nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from embstore.cluster.ray import cluster as ray_cluster
from embstore.cluster.server.servers import described_resources
from embstore.errors import MissingDeviceError

__all__ = ["Reservation"]


class Reservation:
    """A reservation for one variable's shards. The servers reserve nothing themselves, since they
    may hold shards of more and more tables. Ray frees the reservation when the process that made it
    ends.

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
