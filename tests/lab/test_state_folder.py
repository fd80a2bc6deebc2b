"""Folders that hold what a machine needs on this computer."""

from __future__ import annotations

import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pmemlab.machines.state_folder import StateFolder


def test_two_threads_that_release_it_close_its_lock_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(2)

    def slow_rmtree(path: Path, *, ignore_errors: bool) -> None:
        time.sleep(0.1)
        rmtree(path, ignore_errors=ignore_errors)

    def noted_close(number: int) -> None:
        closed.append(number)
        close(number)

    def release() -> bool:
        both.wait()
        folder.release()
        return folder.path.exists()

    rmtree, close = shutil.rmtree, os.close
    closed: list[int] = []
    folder = StateFolder.temporary(tmp_path)
    lock = folder._lock
    monkeypatch.setattr(shutil, "rmtree", slow_rmtree)
    with ThreadPoolExecutor(2) as threads, monkeypatch.context() as patched:
        patched.setattr(os, "close", noted_close)
        found = list(threads.map(lambda _: release(), range(2)))
    assert found == [False, False]
    assert closed.count(lock) == 1
