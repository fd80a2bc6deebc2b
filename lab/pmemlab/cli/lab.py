"""`pmemlab lab`: the clone's machines and servers in containers."""

from __future__ import annotations

import argparse
import sys

from rich.console import Console

from pmemlab.cli.group import Group
from pmemlab.topology import load_topology, topology_names

__all__ = ["add_commands"]


def add_commands(group: Group) -> None:
    up = group.add("up", _up)
    up.add_argument(
        "machines",
        nargs="*",
        metavar="MACHINE",
        help=f"one of {', '.join(topology_names())}, or a topology's file (default: all but those "
        "that start on demand)",
    )
    down = group.add("down", _down)
    down.add_argument("--images", action="store_true", help="remove the clone's images too")
    servers = group.add("servers", _servers)
    servers.add_argument("--image-only", action="store_true", help="build the image only")
    compose = group.add("compose", _compose)
    compose.add_argument(
        "--write", action="store_true", help="write both files into the clone, and print nothing"
    )


def _up(arguments: argparse.Namespace) -> int:
    """start machines in containers and prove them (on-demand machines only if named)"""
    from pmemlab.machines.container.lab import lab_up

    lab_up([load_topology(name) for name in arguments.machines])
    return 0


def _down(arguments: argparse.Namespace) -> int:
    """stop the lab, and remove everything that it left"""
    from pmemlab.machines.container.lab import lab_down

    lab_down(images=arguments.images)
    return 0


def _compose(arguments: argparse.Namespace) -> int:
    """print the Compose files made from the lab's topologies, or write them"""
    from pmemlab.machines.container.clone import find_clone
    from pmemlab.machines.container.compose_file import compose_files, write_compose_files

    if arguments.write:
        write_compose_files(find_clone())
    else:
        sys.stdout.write("\n".join(f"# {name}\n{text}" for name, text in compose_files().items()))
    return 0


def _servers(arguments: argparse.Namespace) -> int:
    """start parameter servers in containers, on a network of their own; `down` removes them"""
    from pmemlab.machines.container.servers import (
        HEAD,
        HEAD_ADDRESS,
        build_servers_image,
        servers_up,
    )

    if arguments.image_only:
        build_servers_image()
        return 0
    head = servers_up()[HEAD]
    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"train on them:    docker exec -t {head.name} python -m benchmarks.criteo_deepctr "
        f"--generated 40000 --server --shards 2 --master_endpoint {HEAD_ADDRESS} "
        "--storage_type DRAM_PMEM --storage_path node:pmem --storage_size 4194304 16777216",
        f"see how they are: docker exec -t {head.name} python -m embstore.server status "
        f"--master_endpoint {HEAD_ADDRESS}",
        sep="\n",
    )
    return 0
