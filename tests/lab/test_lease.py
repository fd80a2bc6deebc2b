"""A lease lets only one run at a time use a machine of a running lab."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pmemlab.errors import LabError
from pmemlab.machines.lease import Lease

HOLD = """
import sys, time
from pathlib import Path
from pmemlab.machines.lease import Lease
lease = Lease(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


def test_a_second_lease_waits_for_the_end_of_the_first(tmp_path: Path) -> None:
    first = Lease(tmp_path / "fsdax.lock")
    done = threading.Event()
    messages: list[str] = []

    def come_second() -> None:
        Lease(tmp_path / "fsdax.lock", on_wait=messages.append).end()
        done.set()

    second = threading.Thread(target=come_second)
    second.start()
    assert not done.wait(0.5)
    first.end()
    assert done.wait(10)
    second.join()
    assert messages == [f"waits for process {os.getpid()}, which uses fsdax of the running lab"]


def test_a_wait_that_is_too_long_is_an_error_that_names_the_holder(tmp_path: Path) -> None:
    lease = Lease(tmp_path / "fsdax.lock")
    with pytest.raises(LabError, match=f"fsdax of the .* is used by process {os.getpid()}"):
        Lease(tmp_path / "fsdax.lock", limit_s=0.3)
    lease.end()


def test_each_machine_has_a_lease_of_its_own(tmp_path: Path) -> None:
    Lease(tmp_path / "fsdax.lock", limit_s=0)
    Lease(tmp_path / "nvme.lock", limit_s=0)


def test_a_lease_ends_with_the_process_that_holds_it(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", HOLD, str(tmp_path / "fsdax.lock")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=environment, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(LabError, match=f"process {holder.pid}"):
            Lease(tmp_path / "fsdax.lock", limit_s=0)
        holder.kill()
        Lease(tmp_path / "fsdax.lock", limit_s=10).end()


def test_a_process_that_the_holder_forked_does_not_hold_the_lease(tmp_path: Path) -> None:
    lease = Lease(tmp_path / "fsdax.lock")
    ends, end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        os.read(ends, 1)  # lives until the test lets it go
        os._exit(0)
    try:
        with pytest.raises(LabError, match=f"is used by process {os.getpid()}"):
            Lease(tmp_path / "fsdax.lock", limit_s=0)
        lease.end()
        Lease(tmp_path / "fsdax.lock", limit_s=5).end()
    finally:
        os.close(end)
        os.close(ends)
        os.waitpid(child, 0)


def test_a_process_that_was_forked_during_the_wait_does_not_hold_the_lease(
    tmp_path: Path,
) -> None:
    first = Lease(tmp_path / "fsdax.lock")
    ends, end = os.pipe()
    children: list[int] = []

    def fork(_: str) -> None:
        children.append(os.fork())
        if children[0] == 0:
            os.close(end)
            os.read(ends, 1)  # lives until the test lets it go
            os._exit(0)
        first.end()

    try:
        Lease(tmp_path / "fsdax.lock", on_wait=fork).end()
        Lease(tmp_path / "fsdax.lock", limit_s=5).end()
    finally:
        os.close(end)
        os.close(ends)
        for child in children:
            os.waitpid(child, 0)


def test_a_lease_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "fsdax.lock").mkdir()
    with pytest.raises(LabError, match=r"fsdax\.lock: .*, or take --machine guest"):
        Lease(tmp_path / "fsdax.lock")
