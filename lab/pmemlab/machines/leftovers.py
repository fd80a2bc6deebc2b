"""Ends what a machine's commands have left running on this computer, in whatever session."""

from __future__ import annotations

import os
import select
import signal
import time
import uuid
from contextlib import suppress
from pathlib import Path

__all__ = ["Mark"]

_LIMIT_S = 10.0  # a process that waits for a dead disk or a dead server can't be ended


class Mark:
    """An environment variable by which a command's processes are known.

    Processes inherit it from each other, also those that begin a session of their own or lose
    their parent. A process that is started with an empty environment, or that overwrites its own
    (some daemons do, to show a title), is not known by it. Each mark has a name of its own, so
    that a machine within a command of another machine is ended with that.
    """

    def __init__(self) -> None:
        self._name = f"PMEMLAB_MACHINE_{uuid.uuid4().hex}"

    @property
    def environment(self) -> dict[str, str]:
        return {self._name: "1"}

    def end_processes(self) -> None:
        """Kill the processes that have the mark, and those that they start meanwhile, and wait
        until they have ended.
        """
        deadline = time.monotonic() + _LIMIT_S
        while time.monotonic() < deadline and (found := self._kill()):
            for process in found:
                end = select.poll()
                end.register(process, select.POLLIN)
                end.poll(1000 * max(deadline - time.monotonic(), 0))
                os.close(process)

    def _kill(self) -> list[int]:
        """Returns descriptors of the processes, which may take a moment to end."""
        entry = f"\0{self._name}=1\0".encode()
        found: list[int] = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended meanwhile, or is another user's
                # Opened before it is read: its id may become another process's.
                process = os.pidfd_open(int(folder.name))
                try:
                    if entry in b"\0" + (folder / "environ").read_bytes():
                        found.append(process)
                        signal.pidfd_send_signal(process, signal.SIGKILL)
                finally:
                    if process not in found:
                        os.close(process)
        return found
