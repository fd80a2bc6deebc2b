"""Ends processes that a machine's commands have left on this computer, in whatever session."""

from __future__ import annotations

import os
import select
import signal
import time
import uuid
from contextlib import suppress
from pathlib import Path

__all__ = ["ProcessMark"]

_LIMIT_S = 10.0  # a process waiting for a dead disk or server can't end


class ProcessMark:
    """An environment variable by which a command's processes are recognised.

    Child processes inherit it, also those that begin a session of their own or lose their parent.
    It does not find a process that was started with an empty environment, or that overwrites its
    own (some daemons do, to show a title). Each mark has a unique name, so that a machine within a
    command of another machine is ended together with the command.
    """

    def __init__(self) -> None:
        self._name = f"PMEMLAB_MACHINE_{uuid.uuid4().hex}"

    @property
    def environment(self) -> dict[str, str]:
        return {self._name: "1"}

    def end_processes(self) -> None:
        """Kills the processes that have the mark, and processes that they start meanwhile, and
        waits until all have ended.
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
            with suppress(OSError):  # it has ended, or is another user's
                # Opened before its environment is read: the id may become another process's.
                process = os.pidfd_open(int(folder.name))
                try:
                    if entry in b"\0" + (folder / "environ").read_bytes():
                        found.append(process)
                        signal.pidfd_send_signal(process, signal.SIGKILL)
                finally:
                    if process not in found:
                        os.close(process)
        return found
