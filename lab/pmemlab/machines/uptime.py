"""A machine's uptime, from a boot to its end."""

from __future__ import annotations

import threading

from pmemlab.errors import LabError, MachineDiedError

__all__ = ["POWER_CUT", "STOPPED", "Uptime"]

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
