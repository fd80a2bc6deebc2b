"""`status`: nodes and shards of a cluster, whose program need not be known."""

from __future__ import annotations

import argparse
import logging
import os

from embstore.cluster import ray_cluster
from embstore.cluster.ray_cluster import ADDRESS_VARIABLE, LOOPBACK
from embstore.errors import EmbStoreError
from embstore.server import ray_node, status_report
from embstore.server.cluster_status import cluster_status

__all__ = ["tell_status"]

_DEFAULT_TIMEOUT_S = 5.0


def tell_status(arguments: list[str]) -> None:
    """Raises EmbStoreError, SystemExit for arguments that aren't any."""
    parsed = _parser().parse_args(arguments)
    os.environ.setdefault("RAY_gcs_server_request_timeout_seconds", "10")  # a minute otherwise
    ray = ray_cluster.library()
    try:
        ray_cluster.connect(
            ray, "--master_endpoint", parsed.master_endpoint, logging_level=logging.WARNING
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        if isinstance(error, EmbStoreError):
            raise
        raise EmbStoreError(
            f"--master_endpoint: {parsed.master_endpoint} can't be asked; ask on a computer that "
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m embstore.server status",
        description="How a cluster's nodes and shards are doing; to be asked on one of its nodes.",
    )
    parser.add_argument(
        "--master_endpoint",
        metavar="IP:PORT",
        default=os.environ.get(ADDRESS_VARIABLE) or f"{LOOPBACK}:{ray_node.DEFAULT_PORT}",
        help="of the cluster; %(default)s by default",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=_DEFAULT_TIMEOUT_S,
        metavar="S",
        help="seconds that all shards together have to answer; %(default)g by default",
    )
    parser.add_argument("--json", action="store_true", help="instead of tables")
    return parser
