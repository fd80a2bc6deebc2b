"""PyTorch without CUDA, where pip can have it.

PyTorch's builds for the CPU have versions like `2.13.0+cpu` and are on PyTorch's own index alone.
The wheel that every index has brings gigabytes of CUDA libraries, and without them it doesn't
load: its libtorch_python.so is linked against libcudnn and libnccl. So the CPU build is asked for
first, on the indexes that the user's pip is configured for, and whoever must do without is told.

The Makefile runs this file by its path before anything is installed: the standard library alone.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["advice", "alone", "cpu_build", "is_not_there"]


def cpu_build(constraints: str) -> str:
    """The requirement of the CPU build of the version that constraints.txt (its text) pins.

    Raises ValueError where it pins none.
    """
    pinned = re.search(r"^torch==([0-9][0-9.]*)\s*$", constraints, re.MULTILINE)
    if pinned is None:
        raise ValueError("constraints.txt: must have a line torch==VERSION, without a +build")
    return f"torch=={pinned[1]}+cpu"


def alone(requirement: str) -> list[str]:
    """Pip's arguments for it alone: beside others, pip doesn't say that no index has it."""
    return ["--no-deps", requirement]


def is_not_there(requirement: str, pip_output: str) -> bool:
    """Whether pip failed because no index has this requirement. It says so in other words where
    its configuration constrains torch, too; what really is in conflict with that, the plain build
    is as well.
    """
    says = ("No matching distribution found for {}", "Cannot install {} because these package")
    return any(words.format(requirement) in pip_output for words in says)


def advice(requirement: str) -> str:
    """What to tell a user whose indexes lack the CPU build."""
    return (
        f"{requirement} is on none of your pip's indexes: the plain build is taken instead, with "
        "2.5 GB of CUDA libraries that nothing here uses. To spare them, stop this, run "
        "`pip config set global.extra-index-url URL` with the address of PyTorch's own index of "
        "CPU builds (pytorch.org names it under Get Started: Linux, Pip, CPU), and start again "
        "after `make clean`."
    )


def _get(constraints: Path, arguments: Sequence[str]) -> int:
    """Run pip for the CPU build by itself; 0 too where there is none, for who follows to decide."""
    requirement = cpu_build(constraints.read_text(encoding="utf-8"))
    command = [sys.executable, "-m", "pip", *arguments, *alone(requirement)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode and is_not_there(requirement, done.stderr):
        print(advice(requirement), file=sys.stderr)
        return 0
    sys.stderr.write(done.stderr)
    return done.returncode


if __name__ == "__main__":  # constraints.txt, then pip's command: `install -q`, `wheel -w FOLDER`
    sys.exit(_get(Path(sys.argv[1]), sys.argv[2:]))
