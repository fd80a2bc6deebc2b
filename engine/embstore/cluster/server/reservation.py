"""What shards take of their nodes, such as PMem: Ray gives it to nobody else meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from embstore.cluster.ray import cluster as ray_cluster
from embstore.cluster.server.servers import described_resources
from embstore.errors import MissingDeviceError

__all__ = ["Reservation"]


class Reservation:
    """Of one variable's shards. A server takes nothing itself: it may hold shards of more and more
    tables. Ray gives back what is reserved when the process that has reserved it ends.

    nodes: Ray's ids of those that the shards go to; of one node each where there are enough.
    """

    def __init__(
        self, ray: Any, variable: str, needed: Sequence[dict[str, float]], within_s: float
    ) -> None:
        """needed: of each shard, by Ray's names of resources.

        within_s: MissingDeviceError where no nodes have so much in that time.
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
            with contextlib.suppress(Exception):  # it may be gone already
                ray.util.remove_placement_group(self._group)
