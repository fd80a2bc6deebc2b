"""The nodes of the Ray cluster that `flags.master_endpoint` names: OpenEmbedding's servers."""

from __future__ import annotations

import os
import socket
import time
from typing import Any

from embstore.cluster import PMEM_RESOURCE
from embstore.cluster.ray import cluster as ray_cluster
from embstore.cluster.ray.head_probe import host_and_port
from embstore.errors import InvalidArgumentError, MissingDeviceError
from embstore.openembedding.flags import Flags

__all__ = ["joined_servers"]

_WAITS_S = 300.0
_LOOKS_AGAIN_AFTER_S = 0.5


def joined_servers(flags: Flags, *, on_pmem: bool) -> int:
    """Joins the servers' cluster, and returns the number of servers.

    on_pmem: counts only servers that offer persistent memory, if any server does.
    Raises EmbStoreError if the cluster can't be reached, and MissingDeviceError if fewer than
    `flags.wait_num_servers` servers are there in time.
    """
    ray = ray_cluster.library()
    if ray.is_initialized():
        _check_same_cluster(ray, flags.master_endpoint)
    else:
        os.environ["RAY_ADDRESS"] = flags.master_endpoint
    ray = ray_cluster.join_or_start()
    deadline = time.monotonic() + _WAITS_S
    while (count := _servers(ray, on_pmem)) < max(flags.wait_num_servers, 1):
        if time.monotonic() > deadline:
            raise MissingDeviceError(
                f"flags.wait_num_servers is {flags.wait_num_servers}, but after {_WAITS_S:g} s "
                f"the cluster at {flags.master_endpoint} has {count} servers; start the others"
            )
        time.sleep(_LOOKS_AGAIN_AFTER_S)
    return count


def _servers(ray: Any, on_pmem: bool) -> int:
    with_pmem = ray_cluster.offered(ray, PMEM_RESOURCE) if on_pmem else []
    return len(with_pmem) or len(ray_cluster.addresses(ray))


def _check_same_cluster(ray: Any, endpoint: str) -> None:
    at = ray.get_runtime_context().gcs_address
    if _resolved(at) != _resolved(endpoint):
        raise InvalidArgumentError(
            f"flags.master_endpoint is {endpoint}, but this program is at the Ray cluster {at} "
            "already; call ray.shutdown() first, or name that one"
        )


def _resolved(endpoint: str) -> tuple[str, int]:
    host, port = host_and_port("flags.master_endpoint", endpoint)
    try:
        return socket.gethostbyname(host), port
    except OSError:
        return host, port
