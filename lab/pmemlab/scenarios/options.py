"""The plugin's options on pytest's command line.

The long names start with --pmemlab-, so that they clash with no other plugin's. The older short
names still work if no other plugin and no conftest.py has an option of that name.
"""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from pmemlab.machines.protocol import KindOrAuto

__all__ = [
    "FOLDERS",
    "WORKER_INPUT",
    "WORKER_OUTPUT",
    "add_options",
    "expand_short_options",
    "here_file",
]

FOLDERS = "pmemlab_scenarios"
"""The option of pytest's configuration that lists folders of scenarios."""

WORKER_INPUT = "pmemlab_results"
"""The key of the name that a worker of pytest-xdist must give its file of results."""

WORKER_OUTPUT = "pmemlab"
"""The key of a worker's findings about scenarios, for its controller."""

_SHORT = ("--storage-type", "--topology", "--machine")


def add_options(group: pytest.OptionGroup) -> None:
    group.addoption(
        "--pmemlab-storage-type",
        action="append",
        dest="pmemlab_storage_types",
        metavar="TYPE",
        help="storage type to run scenarios on; other tests in their folders are deselected; may "
        "be repeated (default: all)",
    )
    group.addoption(
        "--pmemlab-topology",
        action="append",
        dest="pmemlab_topologies",
        metavar="NAME",
        help="topology to run scenarios, and the tests in their folders, on; may be repeated "
        "(default: all)",
    )
    group.addoption(
        "--pmemlab-machine",
        choices=get_args(KindOrAuto),
        default="auto",
        dest="pmemlab_machine",
        help="kind of machine to run scenarios on (default: auto). auto: containers of the running "
        "lab, else throwaway containers, else guests, else process. process: this computer, with "
        "DRAM in place of PMem. host: this computer's own media, at the paths and nodes that the "
        "topology names; never chosen by auto. --storage-type, --topology and --machine work too, "
        "unless another plugin has such an option",
    )
    group.addoption(
        "--pmemlab-here",
        type=Path,
        metavar="FILE",
        dest="pmemlab_here",
        help="device file of this computer's memory, written by `pmemlab model measure`; its time "
        "is subtracted before rates on other memories are predicted; for --pmemlab-machine process "
        "and host",
    )


def here_file(config: pytest.Config) -> Path | None:
    """Returns the file of --pmemlab-here, or None. Raises pytest.UsageError if it can't be used."""
    here: Path | None = config.getoption("pmemlab_here")
    if here is None:
        return None
    if config.getoption("pmemlab_machine") not in ("process", "host"):
        raise pytest.UsageError(
            f"--pmemlab-here {here}: is this computer's memory, not that of an emulated machine; "
            "add --pmemlab-machine process or host"
        )
    if not here.is_file():
        raise pytest.UsageError(
            f"--pmemlab-here {here}: there is no such file; write it by "
            f"`pmemlab model measure node0 -o {here}`"
        )
    return here.absolute()


def expand_short_options(args: list[str], parser: pytest.Parser) -> None:
    """Replaces the short names in `args` by the long ones, unless another plugin knows them.

    REQUIRES: every plugin and conftest.py has added its options.
    """
    long_names = {short: short.replace("--", "--pmemlab-", 1) for short in _SHORT}
    unknown = {short for short in long_names if _is_unknown(short, parser)}
    for position, argument in enumerate(args):
        if argument == "--":
            return
        name, equals, value = argument.partition("=")
        if name in unknown:
            args[position] = f"{long_names[name]}{equals}{value}"


def _is_unknown(option: str, parser: pytest.Parser) -> bool:
    probe = f"{option}=x"
    return probe in parser.parse_known_and_unknown_args([probe])[1]
