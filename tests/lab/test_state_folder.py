"""State folders, which hold a machine's files on this computer."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pmemlab.errors import LabError
from pmemlab.machines.state_folder import StateFolder


def test_two_threads_that_release_a_folder_close_its_lock_once(
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


def test_a_folder_released_while_another_owner_locks_it_has_one_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first owner removes the lock file after the second has opened it. If the second didn't
    notice, a third would create and lock another file.
    """

    def late_flock(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        first.release()
        flock(descriptor, operation)

    flock = fcntl.flock
    first = StateFolder(tmp_path, is_temporary=False)
    monkeypatch.setattr(fcntl, "flock", late_flock)
    second = StateFolder(tmp_path, is_temporary=False)
    with pytest.raises(LabError, match="another machine is using it"):
        StateFolder(tmp_path, is_temporary=False)
    second.release()
    assert list(tmp_path.iterdir()) == []
