"""The common part of all kinds of machines: an agent runs their commands."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TypeVar

from pmemlab.machines.boot import Uptime
from pmemlab.machines.guest.link import Command, Link
from pmemlab.machines.protocol import OnLine, Result

__all__ = ["LinkedMachine"]

M = TypeVar("M", bound="LinkedMachine")


class LinkedMachine(ABC):
    """A machine whose commands are run by an agent at the other end of a link; see `Machine`."""

    @abstractmethod
    def stop(self) -> None: ...

    @abstractmethod
    def _uptime(self) -> Uptime:
        """Returns the current uptime, or the last one if it has ended."""

    @abstractmethod
    def _link_for(self, argv: Sequence[str]) -> Link:
        """Returns the link to the agent for this command. Raises `MachineDiedError`."""

    @abstractmethod
    def _environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Returns a command's whole environment; `env` is the caller's part.

        Called after `_link_for`: so values that belong to a boot fit the link, or the link is dead.
        """

    def run(
        self,
        argv: Sequence[str | os.PathLike[str]],
        env: Mapping[str, str | os.PathLike[str]] | None = None,
        timeout: float | None = None,
        on_line: OnLine | None = None,
    ) -> Result:
        argv, env = _checked_argv(argv), _checked_environment(env or {})
        uptime = self._uptime()
        uptime.check()
        try:
            link = self._link_for(argv)
            return link.run(argv, self._environment(env), timeout, on_line)
        finally:
            uptime.check()  # it may have ended together with the command

    def spawn(
        self,
        argv: Sequence[str | os.PathLike[str]],
        env: Mapping[str, str | os.PathLike[str]],
        terminal: Mapping[str, int] | None = None,
        takes_input: bool = False,
    ) -> Command:
        """Starts a command whose output comes as a stream; see `Link.spawn`."""
        argv, env = _checked_argv(argv), _checked_environment(env)
        self._uptime().check()
        link = self._link_for(argv)
        return link.spawn(argv, self._environment(env), terminal, takes_input)

    def __enter__(self: M) -> M:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _checked_argv(argv: Sequence[str | os.PathLike[str]]) -> list[str]:
    """Returns the program and its arguments as text; a path becomes its text.

    Raises TypeError or ValueError for arguments that no machine can run, so that nothing is sent.
    """
    if isinstance(argv, str | bytes) or not isinstance(argv, Sequence):
        raise TypeError(
            f"argv must be a list of the program and its arguments, not {argv!r}; "
            'for a shell command: ["sh", "-c", ...]'
        )
    if not argv:
        raise ValueError("argv is empty; it must have the program, and then its arguments")
    return [_text(argument, f"argv[{i}]") for i, argument in enumerate(argv)]


def _checked_environment(env: Mapping[str, str | os.PathLike[str]]) -> dict[str, str]:
    """Returns environment variables as text. Raises as `_checked_argv`."""
    if not isinstance(env, Mapping):
        raise TypeError(f"env must map names of variables to their values, not be {env!r}")
    checked = {}
    for name, value in env.items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise (ValueError if isinstance(name, str) else TypeError)(
                f"env: {name!r} is no variable's name; it must be text without = and NUL"
            )
        checked[name] = _text(value, f"env[{name!r}]")
    return checked


def _text(value: object, name: str) -> str:
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str):
        raise TypeError(f"{name} must be text or a path, not {value!r}")
    if "\0" in text:
        raise ValueError(f"{name} must have no NUL in it: {text!r}")
    return text
