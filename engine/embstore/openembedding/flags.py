"""The servers' settings, which a program makes before it makes a model."""

from __future__ import annotations

from dataclasses import dataclass

from embstore.cluster.ray.head_probe import host_and_port
from embstore.errors import InvalidArgumentError, UnsupportedError
from embstore.table import checks

__all__ = ["Flags", "checked", "flags"]


@dataclass(slots=True)
class Flags:
    """Settings of the servers. A table reads them when it is made, so set them before the first
    Embedding or distributed_model.

    config: JSON or YAML with the section "server"; see `server_config.ServerConfig`.
    master_endpoint: "IP:PORT" of a Ray cluster, whose nodes are the servers; "": tables lie in this
        process.
    wait_num_servers: number of the cluster's nodes to wait for before tables are made; -1: don't
        wait.
    bind_ip: must be "": no server of OpenEmbedding runs in this process.
    num_workers: must be 1.
    """

    config: str = ""
    master_endpoint: str = ""
    bind_ip: str = ""
    num_workers: int = 1
    wait_num_servers: int = -1


flags = Flags()


def checked(flags: Flags) -> Flags:
    """Returns the flags unchanged, or raises an error that names the flag that isn't supported."""
    for name in ("config", "master_endpoint", "bind_ip"):
        if not isinstance(getattr(flags, name), str):
            raise InvalidArgumentError(
                f"flags.{name} must be a string, got {getattr(flags, name)!r}"
            )
    if flags.bind_ip:
        raise UnsupportedError(
            f'flags.bind_ip is "{flags.bind_ip}", but this process serves no tables: shards '
            "listen on the address that Ray has for their node, which is chosen where that node is "
            'started; leave bind_ip at ""'
        )
    if checks.integer("flags.num_workers", flags.num_workers, at_least=1) != 1:
        raise UnsupportedError(
            f"flags.num_workers is {flags.num_workers}, but a model of embstore.openembedding is "
            "trained by one process; leave it at 1, and give that process the batches of all, or "
            "train an embstore.keras model by embstore.cluster.run"
        )
    servers = checks.integer("flags.wait_num_servers", flags.wait_num_servers, at_least=-1)
    if servers == 0:
        raise InvalidArgumentError("flags.wait_num_servers must be -1 or at least 1, got 0")
    if servers > 0 and not flags.master_endpoint:
        raise InvalidArgumentError(
            f"flags.wait_num_servers is {servers}, but no cluster is named where servers could be; "
            "set flags.master_endpoint to the IP:PORT of a Ray cluster, or leave it at -1"
        )
    if flags.master_endpoint:
        host_and_port("flags.master_endpoint", flags.master_endpoint)
    return flags
