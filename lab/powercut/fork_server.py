"""A process that has imported what its programs need, and forks a child for each: see `forks`.

    python -m powercut.fork_server DESCRIPTOR

A request comes by the socket of that number: the descriptors of a file of JSON, and of the
program's standard output and error. It names a module, which has a function `main()` that reads
`sys.argv` as if the module were run by `python -m`, and perhaps `prepare(arguments)`, which is
called here and imports what all programs of these arguments need. The answers are the child's
process id, and, once it and all its descendants have ended, its exit code as `subprocess` has it.
Processes that an import started go on.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import socket
import sys
import threading
from contextlib import suppress
from types import ModuleType
from typing import Any

from powercut.descendants import adopt_orphans, children, end_descendants

__all__: list[str] = []


def _serve(requests: socket.socket) -> ModuleType:
    """Returns in children alone: what they are to run."""
    adopt_orphans()
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, 100, 3)
        if not message:
            sys.exit()
        with os.fdopen(descriptors[0]) as file:
            file.seek(0)
            request = json.load(file)
        streams = descriptors[1:]
        module = importlib.import_module(request["module"])
        if hasattr(module, "prepare"):
            with suppress(Exception, SystemExit):  # the program says so: it does the same
                module.prepare(request["arguments"])
        has_threads = threading.active_count() > 1  # of an import; a fork would lack them
        helpers = children()
        child = os.fork()
        if child == 0:
            os.setsid()  # before anybody knows it, and so could end its group
            requests.send(b"%d" % os.getpid())
            requests.close()
            _become(module, request, streams)
            if has_threads:
                os.execv(sys.executable, [sys.executable, "-m", module.__name__, *sys.argv[1:]])
            with suppress(AttributeError):  # it isn't loaded
                ctypes.CDLL(None).powercut_begin()
            return module
        for descriptor in streams:
            os.close(descriptor)
        _, status = os.waitpid(child, 0)
        end_descendants(helpers)
        requests.send(b"%d" % os.waitstatus_to_exitcode(status))


def _become(module: ModuleType, request: dict[str, Any], streams: list[int]) -> None:
    """Make this process the program."""
    for number, descriptor in enumerate([os.open(os.devnull, os.O_RDONLY), *streams]):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = [str(module.__file__), *request["arguments"]]


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1]))).main()
