"""Installs PyTorch without CUDA, if pip's indexes have it.

PyTorch's CPU builds have versions like `2.13.0+cpu` and are only on PyTorch's own index. The wheel
on every index brings gigabytes of CUDA libraries, and does not load without them: its
libtorch_python.so is linked against libcudnn and libnccl. So the CPU build is requested first, on
the indexes that the user's pip is configured for. If they lack it, the user gets advice.

The Makefile runs this file by its path before anything is installed, so it uses only the standard
library.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["cpu_build", "is_on_no_index", "missing_build_advice", "single_requirement"]


def cpu_build(constraints: str) -> str:
    """Returns the requirement of the CPU build of the version pinned by constraints.txt (its text).

    Raises ValueError if it pins none.
    """
    pinned = re.search(r"^torch==([0-9][0-9.]*)\s*$", constraints, re.MULTILINE)
    if pinned is None:
        raise ValueError("constraints.txt: must have a line torch==VERSION, without a +build")
    return f"torch=={pinned[1]}+cpu"


def single_requirement(requirement: str) -> list[str]:
    """Returns pip's arguments for one requirement: with others, pip hides that no index has it."""
    return ["--no-deps", requirement]


def is_on_no_index(requirement: str, pip_output: str) -> bool:
    """Returns whether pip failed because no index has this requirement.

    If pip's configuration constrains torch, too, pip uses other words. A real conflict with such a
    constraint also prevents the plain build.
    """
    says = ("No matching distribution found for {}", "Cannot install {} because these package")
    return any(words.format(requirement) in pip_output for words in says)


def missing_build_advice(requirement: str) -> str:
    """Returns a message for a user whose indexes lack the CPU build."""
    return (
        f"{requirement} is on none of your pip's indexes: the plain build is taken instead, with "
        "2.5 GB of CUDA libraries that nothing here uses. To spare them, stop this, run "
        "`pip config set global.extra-index-url URL` with the address of PyTorch's own index of "
        "CPU builds (pytorch.org names it under Get Started: Linux, Pip, CPU), and start again "
        "after `make clean`."
    )


def _get(constraints: Path, arguments: Sequence[str]) -> int:
    """Runs pip for the CPU build alone. Returns 0 also if no index has it: the next pip decides."""
    requirement = cpu_build(constraints.read_text(encoding="utf-8"))
    command = [sys.executable, "-m", "pip", *arguments, *single_requirement(requirement)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode and is_on_no_index(requirement, done.stderr):
        print(missing_build_advice(requirement), file=sys.stderr)
        return 0
    sys.stderr.write(done.stderr)
    return done.returncode


if __name__ == "__main__":  # constraints.txt, then pip's command: `install -q`, `wheel -w FOLDER`
    sys.exit(_get(Path(sys.argv[1]), sys.argv[2:]))
