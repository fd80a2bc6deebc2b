"""Starts programs, one at a time, and ends all processes that each has left: see `forks`.

    python -m powercut.fork_server DESCRIPTOR

A request comes through the socket of that number: the descriptors of a JSON file, and of the
program's standard output and error. It contains a command's words, or a module and its arguments.

A module is imported here, and the program is a fork. The module has a function `main()` that reads
`sys.argv` as under `python -m`, and perhaps `prepare(arguments)`, which is called here and imports
what all programs with these arguments need. Processes that an import has started live on.

The answers are the program's process id, or the negative errno if it can't be started; and, once it
and all its descendants have ended, its exit code as in `subprocess`.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from types import ModuleType
from typing import Any

from powercut.descendants import adopt_orphans, children, end_descendants

__all__: list[str] = []


def _serve(requests: socket.socket) -> ModuleType:
    """Serves requests. Returns only in forks, with the module that the fork must run."""
    requests.set_inheritable(False)
    adopt_orphans()
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, 100, 3, socket.MSG_CMSG_CLOEXEC)
        if not message:
            sys.exit()
        with os.fdopen(descriptors[0]) as file:
            file.seek(0)
            request = json.load(file)
        streams = descriptors[1:]
        module = _imported(request) if request["module"] else None
        helpers = children()
        if module is None:
            try:
                program = _started(request, streams)
            except OSError as error:
                requests.send(b"%d" % -(error.errno or 1))
                continue
            finally:
                _close(streams)
            requests.send(b"%d" % program.pid)
            status = program.wait()
        else:
            has_threads = threading.active_count() > 1  # from an import; a fork would lack them
            child = os.fork()
            if child == 0:
                os.setsid()  # before its id is known, so that its group can be killed
                requests.send(b"%d" % os.getpid())
                requests.close()
                _run_as_program(module, request, streams)
                if has_threads:
                    os.execv(sys.executable, [sys.executable, "-m", module.__name__, *sys.argv[1:]])
                with suppress(AttributeError):  # the library isn't loaded
                    ctypes.CDLL(None).powercut_begin()
                return module
            _close(streams)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        end_descendants(helpers)
        requests.send(b"%d" % status)


def _close(streams: list[int]) -> None:
    for descriptor in streams:
        os.close(descriptor)


def _started(request: dict[str, Any], streams: list[int]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        request["arguments"],
        env=request["environment"],
        cwd=request["folder"],
        stdin=subprocess.DEVNULL,
        stdout=streams[0],
        stderr=streams[1],
        close_fds=False,
        start_new_session=True,
    )


def _imported(request: dict[str, Any]) -> ModuleType:
    module = importlib.import_module(request["module"])
    if hasattr(module, "prepare"):
        with suppress(Exception, SystemExit):  # the program fails in the same way
            module.prepare(request["arguments"])
    return module


def _run_as_program(module: ModuleType, request: dict[str, Any], streams: list[int]) -> None:
    """Makes this process the program."""
    for number, descriptor in enumerate([os.open(os.devnull, os.O_RDONLY), *streams]):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = [str(module.__file__), *request["arguments"]]


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1]))).main()
