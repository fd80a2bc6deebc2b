"""Runs a module of this project in a guest without its imports, which take seconds there.

    python -S -E prepared.py [OPTION...] -m MODULE [ARGUMENT...]

does the same as `python [OPTION...] -m MODULE [ARGUMENT...]`. The first such command with these
options leaves a server process behind: see `prepared_server`. The server imports the requested
modules, and forks a child for each command, with the command's arguments, working folder, standard
streams and signals. A command whose environment differs from the first one's runs as usual, since
libraries read the environment when they are loaded.

`python -S` has no packages. So the programs that judge an engine, the probe and the witness, run in
a process that has never imported an engine.

This file is run by path. It imports next to nothing, because imports would cost time.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import marshal
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

FOLDER = os.environ.get("XDG_RUNTIME_DIR", "/run") + "/pmemlab-prepared"
VARIABLE = "PMEMLAB_PREPARED"  # set for commands in a guest
ANOTHER_ENVIRONMENT = 0
MAX_BYTES = 1 << 20
STREAMS = 3
_SERVER = "pmemlab.machines.guest.prepared_server"
_MODULES = (
    "pmemlab.machines.guest.probe",
    "pmemlab.workloads.tables",
    "pmemlab.workloads.wdl",
    "pmemlab.workloads.witness",
)
_FORWARDED = ("SIGABRT", "SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM")
_LOOK_AGAIN_S = 0.02


def prepared_command(argv: Sequence[str], python: str) -> list[str]:
    """Returns the command that does the same through this file, or `argv` if there is none.

    argv: a command, perhaps after coreutils' `timeout`. python: the interpreter for which modules
        are prepared.
    """
    arguments = list(argv)
    position = arguments.index(python) if python in arguments else -1
    if position and arguments[:1] != ["timeout"]:
        return arguments
    options = arguments[position + 1 :]
    if "-m" in options:
        del options[options.index("-m") :]
    module = arguments[position + len(options) + 1 :][1:2]
    if not module or module[0] not in _MODULES or not set(options) <= {"-S"}:
        return arguments
    return [*arguments[: position + 1], "-S", "-E", __file__, *arguments[position + 1 :]]


def stop_servers() -> None:
    """Ends the processes that have imported modules: their sources were edited."""
    try:
        names = os.listdir(FOLDER)  # noqa: PTH208
    except FileNotFoundError:
        return
    for name in names:
        connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        try:
            connection.connect(f"{FOLDER}/{name}")
        except OSError:
            pass  # it is just starting, and imports the new sources
        else:
            os.unlink(f"{FOLDER}/{name}")  # noqa: PTH108  # no command can connect to it any more
        finally:
            connection.close()  # a connection without a request ends the server


def _main(argv: list[str]) -> NoReturn:
    position = argv.index("-m")
    options, module, arguments = argv[:position], argv[position + 1], argv[position + 2 :]
    server = _connect(options)
    request = marshal.dumps((module, arguments, dict(os.environ), os.getcwd()))  # noqa: PTH109
    streams = b"".join(n.to_bytes(4, sys.byteorder) for n in range(STREAMS))
    forwarded = [getattr(_signal, name) for name in _FORWARDED]
    # Holds signals back until the child is known.
    _signal.pthread_sigmask(_signal.SIG_BLOCK, forwarded)
    server.sendmsg([request], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
    answer = server.recv(MAX_BYTES)
    if not answer:
        os._exit(1)  # the server has printed why the module can't be imported
    child = int(answer)
    if child != ANOTHER_ENVIRONMENT:
        for number in forwarded:
            _signal.signal(number, lambda number, _: os.kill(child, number))
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, forwarded)
    if child == ANOTHER_ENVIRONMENT:
        os.execv(sys.executable, [sys.executable, *options, "-m", module, *arguments])
    status = int(server.recv(MAX_BYTES))
    if status < 0:
        for number in forwarded:
            _signal.signal(number, _signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def _connect(options: list[str]) -> _socket.socket:
    path = f"{FOLDER}/python{''.join(options)}"
    started = 0
    while True:
        connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        try:
            connection.connect(path)
        except OSError:
            connection.close()
        else:
            return connection
        if not started:
            os.makedirs(FOLDER, exist_ok=True)  # noqa: PTH103
            command = [sys.executable, *options, "-m", _SERVER, path]
            started = os.posix_spawn(sys.executable, command, os.environ)
        elif os.waitpid(started, os.WNOHANG)[1]:
            os._exit(1)  # the server has printed why
        time.sleep(_LOOK_AGAIN_S)


if __name__ == "__main__":
    _main(sys.argv[1:])
