"""Runs `python -m embstore.server` as processes of a test, on the loopback address."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import assert_gone, descendants

_READY_WITHIN_S = 60


@contextlib.contextmanager
def sessions_folder() -> Iterator[Path]:
    """Yields a folder for Ray's files. Its path is short, as paths of sockets must be."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("needs Ray: pip install 'embstore[cluster]'")
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Server:
    """A server process, and the address of its cluster."""

    def __init__(self, process: subprocess.Popen[str], address: str, pmem: Path | None) -> None:
        self.process = process
        self.address = address
        self.pmem = pmem

    def everything(self) -> set[int]:
        return {self.process.pid, *descendants(self.process.pid)}


@contextlib.contextmanager
def server(folder: Path, *flags: str, ends_by: signal.Signals = signal.SIGTERM) -> Iterator[Server]:
    """Yields a server that is ready. Then ends it by a signal, and asserts that all its processes
    have ended, Ray's agents included.
    """
    process = start([sys.executable, "-m", "embstore.server", *flags], folder)
    try:
        ready = first_line(process)
        pmem = Path(flags[flags.index("--pmem") + 1]) if "--pmem" in flags else None
        running = Server(process, ready.rpartition("RAY_ADDRESS=")[2].strip(), pmem)
        yield running
        below = running.everything()
        process.send_signal(ends_by)
        err = wait_for_end(process, below)
        assert process.returncode == 0, err
    finally:
        end(process)


def start(command: list[str], folder: Path, **environment: str) -> subprocess.Popen[str]:
    inherited = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**inherited, "RAY_TMPDIR": str(folder), **environment},
    )


def first_line(process: subprocess.Popen[str]) -> str:
    """Returns the process's first line. Fails with its errors if it ends or prints nothing."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        assert selector.select(_READY_WITHIN_S), "it says nothing"
    line = process.stdout.readline()
    assert line, process.communicate(timeout=100)[1]
    return line


def wait_for_end(process: subprocess.Popen[str], below: set[int]) -> str:
    """Returns the process's error output. Asserts that no process of `below` outlives it."""
    process.wait(timeout=200)
    assert_gone(below, at_once=True)
    return process.communicate(timeout=100)[1]  # would also wait for processes of `below`


def end(process: subprocess.Popen[str]) -> None:
    """Ends the process if a failed test hasn't."""
    if process.poll() is None:
        process.terminate()
        try:
            process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def status(folder: Path, address: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(status_text(folder, address, "--json"))
    return told


def status_text(folder: Path, address: str, *flags: str) -> str:
    """Returns the output of `status`. Fails if it takes longer than it may for a stopped shard."""
    began = time.monotonic()
    process = start(
        [
            *(sys.executable, "-m", "embstore.server", "status"),
            *("--master_endpoint", address, *flags),
        ],
        folder,
    )
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert time.monotonic() - began < 30
    return out


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def listening(processes: set[int]) -> set[str]:
    """Returns the addresses, in the kernel's notation, that the processes accept connections at."""
    addresses: dict[str, str] = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                addresses[f"socket:[{fields[9]}]"] = fields[1].partition(":")[0]
    found = set()
    for process in processes:
        with contextlib.suppress(OSError):  # the process or the descriptor may be closed meanwhile
            for descriptor in Path(f"/proc/{process}/fd").iterdir():
                with contextlib.suppress(OSError):
                    found.add(addresses.get(str(descriptor.readlink()), ""))
    return found - {""}
