"""One boot of a machine."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from pmemlab.errors import LabError, MachineDiedError
from pmemlab.machines.guest.link import Link
from pmemlab.machines.uptime import Uptime

__all__ = ["Boot", "Emulator"]


class Emulator(Protocol):
    """What a machine's agent runs on."""

    def kill(self) -> None:
        """End it at once, with all that runs on it. Idempotent."""

    def died(self, how: str) -> LabError:
        """The error that says how it was found dead."""


E = TypeVar("E", bound=Emulator)


class Boot(Generic[E]):
    """What a machine runs on and the way to its agent, from power on to the end.

    uptime: tells its end where that was by our own hand.
    was_proved: whether the machine came up and proved what it is.
    """

    was_proved = False

    def __init__(self, who: str, start: Callable[[socket.socket], E]) -> None:
        """Start the emulator; the machine is up once its agent says hello.

        who: the machine, in errors. start: is given the agent's end of a socket.
        """
        self.uptime = Uptime(who)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            self.emulator = start(theirs)
            self._link = Link(ours.dup(), self.died)

    @property
    def link(self) -> Link:
        """The way to its agent. Raises `MachineDiedError` where its end was by our own hand."""
        self.uptime.check()
        return self._link

    def end(self, how: str) -> None:
        """End it at once: no shutdown, no flush. Idempotent."""
        self.uptime.end(how)  # first, so that commands that end with it know why
        self.emulator.kill()
        self._link.close()

    def wait_ended(self) -> None:
        self._link.wait_closed()

    def died(self, how: str) -> LabError:
        """The error for its death, found out in this way."""
        try:
            self.uptime.check()
        except MachineDiedError as error:
            return error
        return self.emulator.died(how)
