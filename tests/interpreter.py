"""Programs that need an interpreter of their own."""

from __future__ import annotations

import os
import subprocess
import sys

__all__ = ["run_python"]


def run_python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ,
    )
