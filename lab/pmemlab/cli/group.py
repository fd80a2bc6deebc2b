"""A group of commands, for example `pmemlab machine`."""

from __future__ import annotations

import argparse
from collections.abc import Callable

__all__ = ["Command", "Group"]

Command = Callable[[argparse.Namespace], int]
"""Runs a command and returns its exit status. The docstring is the command's help."""


class Group:
    def __init__(self, commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
        self._commands = commands

    def add(self, name: str, run: Command) -> argparse.ArgumentParser:
        command = self._commands.add_parser(name, help=run.__doc__, description=run.__doc__)
        command.set_defaults(run=run)
        return command

    def add_group(self, name: str, summary: str) -> Group:
        group = self._commands.add_parser(name, help=summary, description=summary)
        return Group(group.add_subparsers(required=True, metavar="COMMAND"))
