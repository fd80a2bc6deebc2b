"""Programs that tests run in processes of their own, and variables as those make them."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import embstore as es


def run_program(
    text: str, *arguments: Path | str, timeout: float = 100
) -> subprocess.CompletedProcess[str]:
    """A Python program that finds these tests' modules; TimeoutExpired where it doesn't end."""
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    return subprocess.run(
        [sys.executable, "-c", text, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


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
