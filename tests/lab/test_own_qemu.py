"""Tests of guests ignore the QEMU and the kernel that the user's environment names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent


def test_tests_of_guests_ignore_the_user_s_own_qemu_and_kernel() -> None:
    # Another process, since this one's environment no longer names either.
    test = TESTS / "test_checked_command.py::test_output_and_status_come_back_exactly"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test)],
        env={**os.environ, "PMEMLAB_QEMU": "/bin/false", "PMEMLAB_KERNEL": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout
