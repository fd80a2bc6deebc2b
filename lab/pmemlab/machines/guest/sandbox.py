"""QEMU in a sandbox: a guest that breaks out of it may start nothing and become nobody else."""

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
    """The arguments that switch it on; none where this QEMU, or this computer, can't do it."""
    return _sandbox_arguments(qemu, Path(qemu).stat().st_mtime_ns)


@cache
def _sandbox_arguments(qemu: str, _changed_ns: int) -> tuple[str, ...]:
    """Seccomp may be left out of a QEMU, and be refused by a container: only a start tells."""
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
