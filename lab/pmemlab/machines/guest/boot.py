"""One boot of a guest."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from pmemlab.errors import LabError, MachineDiedError
from pmemlab.machines.guest.link import Link
from pmemlab.machines.guest.qemu import Qemu
from pmemlab.machines.uptime import Uptime

__all__ = ["Boot"]


class Boot:
    """QEMU and the way to its agent, from power on to the end.

    uptime: tells its end where that was by our own hand.
    was_proved: whether the guest came up and proved what it is.
    """

    was_proved = False

    def __init__(self, name: str, argv: Callable[[str], Sequence[str]], state: Path) -> None:
        """Start QEMU; the guest is up once its agent says hello.

        argv: QEMU's command line, given the options of the socket to the agent.
        """
        self.uptime = Uptime(f"guest {name}")
        ours, theirs = socket.socketpair()
        with ours:
            self._qemu = Qemu(name, argv(f"fd={theirs.fileno()}"), state, theirs)
            self._link = Link(ours.dup(), self.died)

    @property
    def pid(self) -> int:
        """QEMU's process id."""
        return self._qemu.pid

    @property
    def link(self) -> Link:
        """The way to its agent. Raises `MachineDiedError` where its end was by our own hand."""
        self.uptime.check()
        return self._link

    def end(self, how: str) -> None:
        """End it at once: no shutdown, no flush. Idempotent."""
        self.uptime.end(how)  # first, so that commands that end with it know why
        self._qemu.kill()
        self._link.close()

    def wait_ended(self) -> None:
        self._link.wait_closed()

    def died(self, how: str) -> LabError:
        """The error for its death, found out in this way."""
        try:
            self.uptime.check()
        except MachineDiedError as error:
            return error
        return self._qemu.died(how)
