"""Runs programs for programs.py, each in a fork of this process, which has imported what they need.

Importing NumPy, the engine and pytest takes longer than most programs do. A request comes by the
socket whose descriptor is the argument: a message of JSON, with the descriptors that become the
program's standard output and error. The answers are the fork's process id, and its exit code, as
subprocess has it, once it has ended. A program's text runs at the top of this module, so that the
process ends as any Python program does.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import Any

import numpy  # noqa: F401  for the programs
import pytest  # noqa: F401

import embstore  # noqa: F401

LONGEST_REQUEST_BYTES = 1 << 20


def serve(requests: socket.socket) -> str:
    """Returns in forks alone: the text that each of them is to run."""
    while True:
        message, output, _, _ = socket.recv_fds(requests, LONGEST_REQUEST_BYTES, 2)
        if not message:
            sys.exit()
        child = os.fork()
        if child == 0:
            requests.close()
            request = json.loads(message)
            prepare(request, output)
            text: str = request["text"]
            return text
        for descriptor in output:
            os.close(descriptor)
        requests.send(b"%d" % child)
        _, status = os.waitpid(child, 0)
        requests.send(b"%d" % os.waitstatus_to_exitcode(status))


def prepare(request: dict[str, Any], output: list[int]) -> None:
    """Gives this process a group of its own, and what the request has for it."""
    os.setpgid(0, 0)
    for number, descriptor in enumerate([os.open(os.devnull, os.O_RDONLY), *output]):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = ["-c", *request["arguments"]]


if __name__ == "__main__":
    requests = socket.socket(fileno=int(sys.argv[1]))
    exec(compile(serve(requests), "<string>", "exec"))
