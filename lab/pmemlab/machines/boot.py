"""One boot of a machine, and the time with power that it begins."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from pmemlab.errors import LabError, MachineDiedError
from pmemlab.machines.guest.link import Link

__all__ = ["POWER_CUT", "STOPPED", "Boot", "Emulator", "Uptime"]

POWER_CUT = "has had its power cut"
STOPPED = "is stopped"


class Uptime:
    """The time with power to which a command belongs. A command keeps the uptime that it began in,
    so it is never taken for a command of the next boot.

    Methods may be called from any thread.
    """

    def __init__(self, machine_name: str) -> None:
        """machine_name: for errors."""
        self._machine_name = machine_name
        self._lock = threading.Lock()
        self._end = ""

    @property
    def end_reason(self) -> str:
        """The way it ended, as words that follow the machine's name; empty while it goes on."""
        with self._lock:
            return self._end

    def end(self, reason: str) -> None:
        """Ends the uptime. The first reason given stays, but STOPPED replaces it."""
        with self._lock:
            if not self._end or reason == STOPPED:
                self._end = reason

    def check(self) -> None:
        """Raises `MachineDiedError` if the uptime has ended."""
        if self.end_reason:
            raise MachineDiedError(f"{self._machine_name} {self.end_reason}")

    def check_ended(self) -> None:
        """Raises `LabError` if the machine may not be switched on: it has power, or is stopped."""
        if self.end_reason == STOPPED:
            self.check()
        if not self.end_reason:
            raise LabError(f"{self._machine_name} has power; cut it first")


class Emulator(Protocol):
    """The process or container that a machine's agent runs in."""

    def kill(self) -> None:
        """Ends the emulator at once, with everything that runs on it. Idempotent."""

    def death_error(self, observation: str) -> LabError:
        """Returns the error for an emulator that was found dead. observation: what was seen."""


E = TypeVar("E", bound=Emulator)


class Boot(Generic[E]):
    """A machine's emulator and the link to its agent, from power on to the end.

    uptime: knows how the boot ended, if this process ended it.
    was_proved: whether the machine came up and passed its proof.
    """

    was_proved = False

    def __init__(self, machine_name: str, start: Callable[[socket.socket], E]) -> None:
        """Starts the emulator. The machine is up once its agent says hello.

        machine_name: for errors. start: starts the emulator with the agent's end of a socket.
        """
        self.uptime = Uptime(machine_name)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            self.emulator = start(theirs)
            self._link = Link(ours.dup(), self.death_error)

    @property
    def link(self) -> Link:
        """The link to the agent. Raises `MachineDiedError` if this process has ended the boot."""
        self.uptime.check()
        return self._link

    def end(self, reason: str) -> None:
        """Ends the boot at once: no shutdown, no flush. Idempotent."""
        self.uptime.end(reason)  # first, so that commands that fail by it know why
        self.emulator.kill()
        self._link.close()

    def wait_ended(self) -> None:
        self._link.wait_closed()

    def death_error(self, observation: str) -> LabError:
        """Returns the error for the machine's death. observation: what was seen of it."""
        try:
            self.uptime.check()
        except MachineDiedError as error:
            return error
        return self.emulator.death_error(observation)
