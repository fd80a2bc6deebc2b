"""`pmemlab model`: models of devices, of tables on them, and the errors of these models."""

from __future__ import annotations

import argparse
from pathlib import Path

from pmemlab.cli.group import Group
from pmemlab.errors import MissingRequirementError
from pmemlab.model.fidelity.command import add_options as add_fidelity_options
from pmemlab.model.openembedding.options import add_options as add_prediction_options
from pmemlab.model.planning.options import add_options as add_plan_options
from pmemlab.results import results_console

__all__ = ["add_commands"]

_MEASURING = """\
Measure a device and write a device file. Other commands take its path as the name of a device.

The device is a NUMA node (node0: DRAM, CXL memory or PMem as system memory), a folder on a dax
mount or in /dev/shm (memory too), or a folder on a disk.
"""


def add_commands(group: Group) -> None:
    devices = group.add("devices", _devices)
    devices.add_argument(
        "name", nargs="?", metavar="NAME", help="a device, or a device file (default: list all)"
    )
    _add_measuring_options(group.add("measure", _measure))
    add_plan_options(group.add("plan", _plan))
    add_prediction_options(group.add("predict", _predict))
    add_fidelity_options(group.add("fidelity", _fidelity))


def _add_measuring_options(command: argparse.ArgumentParser) -> None:
    command.description = _MEASURING
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    command.add_argument("what", metavar="PATH|NODE", help="a folder, or node0, node1, ...")
    command.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.yaml")
    command.add_argument("--force", action="store_true", help="overwrite FILE.yaml")
    command.add_argument("--name", help="name of the device (default: the file's)")
    command.add_argument("--title", help="title of the device (default: what was measured)")
    command.add_argument(
        "--size",
        metavar="BYTES",
        help="size to measure, for example 4G (default: eight times the last-level cache, or 4G "
        "for a disk)",
    )
    command.add_argument(
        "--seconds",
        type=float,
        default=0.15,
        metavar="S",
        help="time for each figure (default: 0.15)",
    )
    command.add_argument(
        "--page-cache", action="store_true", help="measure a disk through its page cache"
    )
    command.add_argument(
        "--media-line",
        metavar="BYTES",
        help="smallest transfer of the medium: 256 for Optane (default: 64, 4K for a disk)",
    )
    command.add_argument(
        "--last-level-cache",
        metavar="BYTES",
        help="size of the last-level cache (default: what the system says)",
    )


def _devices(arguments: argparse.Namespace) -> int:
    """list the devices that rates of tables can be predicted for, or show one with its sources"""
    from pmemlab.model.devices.command import print_device, print_devices

    console = results_console()
    if arguments.name is None:
        print_devices(console)
    else:
        print_device(console, arguments.name)
    return 0


def _measure(arguments: argparse.Namespace) -> int:
    """measure a NUMA node, a dax mount or a disk, and write a device file of it"""
    from pmemlab.model.devices.command import print_device
    from pmemlab.model.devices.measuring.command import measure_device

    names = ("seconds", "size", "last_level_cache", "media_line", "name", "title")
    options = {name: getattr(arguments, name) for name in (*names, "page_cache", "force")}
    output = measure_device(arguments.what, arguments.output, **options)
    console = results_console()
    print_device(console, str(output))
    console.print(f"\nwritten: {output}", markup=False)
    return 0


def _plan(arguments: argparse.Namespace) -> int:
    """rank storage modes and devices for a table: bytes, hit rates, speed, machines and price"""
    try:
        import embstore  # noqa: F401
    except ImportError as error:
        raise MissingRequirementError(f"plan: the engine ({error})", "make setup") from error
    from pmemlab.model.planning.command import plan

    return plan(arguments)


def _predict(arguments: argparse.Namespace) -> int:
    """predict times and costs of PMem-based OpenEmbedding (ICDE 2023), on its own machines"""
    from pmemlab.model.openembedding.command import openembedding

    return openembedding(arguments)


def _fidelity(arguments: argparse.Namespace) -> int:
    """print predictions beside published figures, with the error of each"""
    from pmemlab.model.fidelity.command import fidelity

    return fidelity(arguments)
