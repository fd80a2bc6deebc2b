"""The command `status`: the nodes, servers and shards of any cluster."""

from __future__ import annotations

import argparse
import logging
import os

from embstore.cluster.ray import cluster as ray_cluster
from embstore.cluster.ray import private
from embstore.cluster.ray.cluster import ADDRESS_VARIABLE
from embstore.errors import EmbStoreError
from embstore.server import status_report
from embstore.server.cluster_status import cluster_status
from embstore.table import checks

__all__ = ["tell_status"]

_DEFAULT_TIMEOUT_S = 5.0
_MAX_TIMEOUT_S = 86_400.0


def tell_status(arguments: list[str]) -> None:
    """Prints the status. Raises EmbStoreError, and SystemExit for wrong arguments."""
    parsed = _parser().parse_args(arguments)
    checks.real("--timeout", parsed.timeout, above=0, at_most=_MAX_TIMEOUT_S)
    os.environ.setdefault("RAY_gcs_server_request_timeout_seconds", "10")  # instead of a minute
    ray = ray_cluster.library()
    endpoint: str = parsed.master_endpoint or _only_cluster_here()
    try:
        ray_cluster.connect(
            *(ray, "--master_endpoint", endpoint),
            logging_level=logging.WARNING,
            log_to_driver=False,  # omits what other processes print
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        if isinstance(error, EmbStoreError):
            raise
        raise EmbStoreError(
            f"--master_endpoint: {endpoint} can't be asked; ask on a computer that "
            f"is a node of the cluster, as its servers' user: {' '.join(str(error).split())}"
        ) from error
    try:
        status = cluster_status(ray, parsed.timeout)
    finally:
        ray.shutdown()
    if parsed.json:
        print(status_report.as_json(status))
    else:
        status_report.print_tables(status)


def _only_cluster_here() -> str:
    """Returns the address of the only cluster with a node on this computer. A program that trains
    without a given cluster has one here.
    """
    found = sorted(private.clusters_here())
    if not found:
        raise EmbStoreError(
            "no Ray cluster has a node on this computer, and so no table has shards here; start a "
            "server (python -m embstore.server), or give --master_endpoint the address that one "
            "printed"
        )
    if len(found) > 1:
        raise EmbStoreError(
            f"--master_endpoint: {len(found)} Ray clusters have a node on this computer; choose "
            f"one of {', '.join(found)}"
        )
    return found[0]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m embstore.server status",
        description="Prints the status of a cluster's nodes, servers and shards. Run it on a node.",
    )
    parser.add_argument(
        "--master_endpoint",
        metavar="IP:PORT",
        default=os.environ.get(ADDRESS_VARIABLE),
        help=f"address of the cluster (default: {ADDRESS_VARIABLE}, else the cluster that has a "
        "node on this computer)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=_DEFAULT_TIMEOUT_S,
        metavar="S",
        help="time limit in seconds for the answers of all servers (default: %(default)g)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return parser
