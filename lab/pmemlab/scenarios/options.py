"""The plugin's options on pytest's command line.

Their names start with --pmemlab-, so that they are nobody else's. The short ones of before go on
working where no other plugin and no conftest.py has an option of that name.
"""

from __future__ import annotations

import pytest

__all__ = ["add_options", "lengthen"]

_MACHINES = ("auto", "process", "guest", "container")
_SHORT = ("--storage-type", "--topology", "--machine")


def add_options(group: pytest.OptionGroup) -> None:
    group.addoption(
        "--pmemlab-storage-type",
        action="append",
        dest="pmemlab_storage_types",
        metavar="TYPE",
        help="run scenarios on this storage type only; may be given more than once",
    )
    group.addoption(
        "--pmemlab-topology",
        action="append",
        dest="pmemlab_topologies",
        metavar="NAME",
        help="run scenarios of this topology only; may be given more than once",
    )
    group.addoption(
        "--pmemlab-machine",
        choices=_MACHINES,
        default="auto",
        dest="pmemlab_machine",
        help="kind of machine to run scenarios on; auto: the running lab's containers, else "
        "throwaway containers, else guests, else this computer itself. Without --pmemlab-, the "
        "three work too where no other plugin has such an option",
    )


def lengthen(args: list[str], parser: pytest.Parser) -> None:
    """Replace the short names in args by the long ones, where nobody else knows them.

    To be called when every plugin and conftest.py has said its options.
    """
    ours = {short: short.replace("--", "--pmemlab-", 1) for short in _SHORT}
    unknown = {short for short in ours if _is_unknown(short, parser)}
    for position, argument in enumerate(args):
        if argument == "--":
            return
        name, equals, value = argument.partition("=")
        if name in unknown:
            args[position] = f"{ours[name]}{equals}{value}"


def _is_unknown(option: str, parser: pytest.Parser) -> bool:
    probe = f"{option}=x"
    return probe in parser.parse_known_and_unknown_args([probe])[1]
