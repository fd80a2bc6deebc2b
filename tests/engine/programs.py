"""Programs that tests run in processes of their own, and the variables that they use."""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from forked_programs import PRINT_STACKS_SIGNAL

import embstore as es
from powercut.forks import Forks


@functools.cache
def _forks() -> Forks:
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    forks = Forks({**os.environ, "PYTHONPATH": path}, imports_once=True)
    atexit.register(forks.close)
    return forks


def run_program(
    text: str,
    *arguments: Path | str,
    timeout: float = 100,
    environment: Mapping[str, str] = os.environ,
) -> subprocess.CompletedProcess[str]:
    """Runs a Python program that can import these tests' modules. Raises AssertionError with the
    stacks of its threads and forks if it doesn't end in time.

    environment: variables that are read while Python, NumPy or the engine is loaded have no effect,
    because the program is a fork of a process that has loaded them.
    """
    told, tells = zip(os.pipe(), os.pipe(), strict=True)
    try:
        program = [sys.executable, "-m", "forked_programs", text, *map(str, arguments)]
        fork = _forks().start(program, environment, *tells)
    finally:
        for descriptor in tells:
            os.close(descriptor)
    with ThreadPoolExecutor(len(told)) as readers:
        output = [readers.submit(_read, descriptor) for descriptor in told]
        try:
            ended = fork.wait(timeout)
        except subprocess.TimeoutExpired:
            fork.send(PRINT_STACKS_SIGNAL)
            time.sleep(3)
            fork.end()
            told_of = "".join(each.result() for each in output)
            raise AssertionError(f"still running after {timeout:g} s:\n{told_of}") from None
        except BaseException:  # such as a test's time limit
            fork.end()  # and its own forks
            raise
    return subprocess.CompletedProcess(text, ended, *(each.result() for each in output))


def _read(descriptor: int) -> str:
    with os.fdopen(descriptor) as opened:
        return opened.read()


def run_function(module: str, call: str, timeout: float = 100) -> None:
    """Calls a function of a test module in a process of its own. Fails if the function does."""
    ended = run_program(f"import {module}\n{module}.{call}", timeout=timeout)
    assert ended.returncode == 0, ended.stderr or f"ended by signal {-ended.returncode}"


def anonymous_bytes() -> int:
    """Returns the bytes of this process's memory that aren't pages of files.

    Trims malloc first: how many freed blocks it keeps is chance, because a thread's arena gives
    back only what is at its top.
    """
    ctypes.CDLL(None).malloc_trim(0)
    rollup = Path("/proc/self/smaps_rollup").read_text()
    match = re.search(r"^Anonymous:\s+(\d+) kB", rollup, re.MULTILINE)
    assert match is not None
    return int(match[1]) * 1024


@contextmanager
def no_file_grows_beyond(size_bytes: int) -> Iterator[None]:
    """Makes writes beyond that size of a file fail in the whole process, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _, hard_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard_limit))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard_limit, hard_limit))


def kept_variable(
    directory: Path,
    keep_files: bool = True,
    first_tier_rows: int = 1 << 20,
    storage_type: es.StorageType = es.StorageType.DRAM_SSDHASH,
    **ssdhash: Any,
) -> es.EmbeddingVariable:
    """Opens a variable whose rows are 16 floats and their accumulators. By default all rows stay in
    the first tier.

    ssdhash: options of the files that are kept.
    """
    option = es.SSDHashOption(keep_files=True, **ssdhash) if keep_files else None
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


def gradients_of_ones(
    ids: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Returns gradients of ones for rows of 16 floats."""
    return np.ones((ids.size, 16), np.float32)
