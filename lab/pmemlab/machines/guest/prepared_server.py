"""A process that imports modules, and forks a child for each command: see `prepared`.

    python -m pmemlab.machines.guest.prepared_server SOCKET

A module is imported on its first use, together with the modules listed in its `PREPARED`. No
function of the module is called in this process, so no command can affect the next one. A module
has a function `main()`, which returns an exit status or None.

A supervisor process between this process and each command waits for both ends: the command ends
when its client does.
"""

from __future__ import annotations

import importlib
import marshal
import os
import select
import signal
import socket
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from types import ModuleType

from pmemlab.machines.guest.prepared import ANOTHER_ENVIRONMENT, MAX_BYTES, STREAMS

__all__: list[str] = []


def _serve(path: Path) -> None:
    environment = dict(os.environ)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        try:
            listener.bind(str(path))
        except OSError:
            return  # another server was first
        listener.listen()
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no parent waits for supervisors
        with open(os.devnull, "r+b", buffering=0) as nothing:  # noqa: PTH123
            for stream in range(STREAMS):
                os.dup2(nothing.fileno(), stream)
        while True:
            connection, _ = listener.accept()
            with connection:
                request, streams, _, _ = socket.recv_fds(connection, MAX_BYTES, STREAMS)
                if not request:
                    return
                name, arguments, theirs, folder = marshal.loads(request)
                if theirs != environment:
                    with suppress(OSError):
                        connection.send(b"%d" % ANOTHER_ENVIRONMENT)
                elif (module := _imported(name, streams[-1])) and not os.fork():
                    listener.close()
                    _supervise(module, arguments, folder, connection, streams)
                    return
                for stream in streams:
                    os.close(stream)


def _imported(name: str, stderr: int) -> ModuleType | None:
    """Returns the module, or None if it can't be imported; the traceback goes to `stderr`."""
    try:
        module = importlib.import_module(name)
        for further in getattr(module, "PREPARED", ()):
            importlib.import_module(further)
    except Exception:
        with suppress(OSError):
            os.write(stderr, traceback.format_exc().encode())
        return None
    return module


def _supervise(
    module: ModuleType,
    arguments: list[str],
    folder: str,
    connection: socket.socket,
    streams: list[int],
) -> None:
    """Runs a command and reports its end. Returns only in the command's own process, at its end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if not child:
        connection.close()
        os.setpgid(0, 0)
        os.chdir(folder)
        for stream, theirs in enumerate(streams):
            os.dup2(theirs, stream)
            os.close(theirs)
        sys.argv = [str(module.__file__), *arguments]
        sys.exit(module.main())
    for stream in streams:
        os.close(stream)
    ended = os.pidfd_open(child)
    with suppress(OSError):
        connection.send(b"%d" % child)
        select.select([ended, connection.fileno()], [], [])
    if not select.select([ended], [], [], 0)[0]:  # the client is gone
        _kill(child)
    _, status = os.waitpid(child, 0)
    with suppress(OSError):
        connection.send(b"%d" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def _kill(child: int) -> None:
    """Kills a command with its children."""
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:  # it is not yet a group leader
        os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
