"""QEMU's sandbox: a guest that breaks out can't start a program or change its user."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

__all__ = ["sandbox_arguments"]

_ARGUMENTS = (
    "-sandbox",
    "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
)
_TRIAL_LIMIT_S = 20.0


def sandbox_arguments(qemu: str) -> tuple[str, ...]:
    """Returns the sandbox's arguments, or none if this QEMU or this computer can't use it."""
    return _sandbox_arguments(qemu, Path(qemu).stat().st_mtime_ns)


@cache
def _sandbox_arguments(qemu: str, _changed_ns: int) -> tuple[str, ...]:
    """Tries a start: a QEMU may lack seccomp, and a container may refuse it."""
    machine = ["-nodefaults", "-no-user-config", "-display", "none", "-machine", "none"]
    try:
        done = subprocess.run(
            [qemu, *_ARGUMENTS, *machine, "-monitor", "stdio"],
            input=b"quit\n",
            capture_output=True,
            timeout=_TRIAL_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ()
    return () if done.returncode else _ARGUMENTS
