"""Programs that tests run in processes of their own, and variables as those make them."""

from __future__ import annotations

import atexit
import functools
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import embstore as es


@functools.cache
def _forks() -> socket.socket:
    """By which the process of forked_programs.py is spoken to; it ends with this one."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    with there:
        process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("forked_programs.py"), str(there.fileno())],
            env={**os.environ, "PYTHONPATH": path},
            pass_fds=[there.fileno()],
        )

    def end() -> None:
        here.close()
        process.wait()

    atexit.register(end)
    return here


def run_program(
    text: str,
    *arguments: Path | str,
    timeout: float = 100,
    environment: Mapping[str, str] = os.environ,
) -> subprocess.CompletedProcess[str]:
    """A Python program that finds these tests' modules; TimeoutExpired where it doesn't end.

    environment: what is read while Python, NumPy or the engine is loaded has no effect.
    """
    request = {
        "text": text,
        "arguments": [*map(str, arguments)],
        "environment": dict(environment),
        "folder": str(Path.cwd()),
    }
    forks = _forks()
    told, tells = zip(os.pipe(), os.pipe(), strict=True)
    try:
        socket.send_fds(forks, [json.dumps(request).encode()], tells)
    finally:
        for descriptor in tells:
            os.close(descriptor)
    child = _number(forks)
    with ThreadPoolExecutor(len(told)) as readers:
        output = [readers.submit(_read, descriptor) for descriptor in told]
        try:
            if not select.select([forks], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(text, timeout)
        except BaseException:  # such as a test's time limit
            os.killpg(child, signal.SIGKILL)  # with what it forked itself
            _number(forks)
            raise
        ended = _number(forks)
    return subprocess.CompletedProcess(text, ended, *(each.result() for each in output))


def _number(forks: socket.socket) -> int:
    """The next answer; ValueError where the process has ended."""
    return int(forks.recv(100))


def _read(descriptor: int) -> str:
    with os.fdopen(descriptor) as opened:
        return opened.read()


def run_function(module: str, call: str, timeout: float = 100) -> None:
    """Calls a function of a test module in a process of its own; fails where it does."""
    ended = run_program(f"import {module}\n{module}.{call}", timeout=timeout)
    assert ended.returncode == 0, ended.stderr or f"ended by signal {-ended.returncode}"


@contextmanager
def no_file_grows_beyond(size_bytes: int) -> Iterator[None]:
    """As if the disk were full: writes beyond that place of a file fail, in the whole process."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def kept_variable(
    directory: Path,
    keep_files: bool = True,
    first_tier_rows: int = 1 << 20,
    storage_type: es.StorageType = es.StorageType.DRAM_SSDHASH,
) -> es.EmbeddingVariable:
    """Rows of 16 floats and their accumulators; by default all stay in the first tier."""
    option = es.SSDHashOption(keep_files=True) if keep_files else None
    return es.get_embedding_variable(
        "var",
        16,
        initializer=es.initializers.RandomUniform(seed=9),
        optimizer=es.optimizers.Adagrad(0.1),
        ev_option=es.EmbeddingVariableOption(
            storage_option=es.StorageOption(
                storage_type, [None, directory], [first_tier_rows * 128], ssdhash_option=option
            )
        ),
    )


def ones(
    ids: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Gradients of such rows."""
    return np.ones((ids.size, 16), np.float32)
