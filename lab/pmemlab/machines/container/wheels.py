"""Python packages for the image, downloaded outside of it.

A container has neither this user's pip configuration (an index of their own, a folder of wheels, a
proxy's certificate) nor, often, a route to the network.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from pmemlab.errors import LabError
from pmemlab.machines.container.clone import Clone
from pmemlab.machines.container.image_system import GLIBC_MINOR, PYTHON
from pmemlab.machines.container.long_command import Report, run_long_command

__all__ = ["prepare_wheels", "replaced_folder"]

_FOLDERS: Final = {
    "run": ("engine", "lab"),
    "build": ("--build", "engine", "lab"),
    "servers": ("engine[torch,cluster,keras]",),
}
"""Folder in docker/wheels -> the arguments of lab/tools/extras.py that print what belongs there."""


def prepare_wheels(clone: Clone, folders: Sequence[str], announce: Report, report: Report) -> None:
    """Fills folders of docker/wheels: run (a machine's packages), build (the build's), servers.

    Does nothing if they match the projects and constraints.txt. The user's own pip configuration
    decides where wheels come from. PyTorch is the CPU build if available; otherwise `announce` gets
    a line on what that costs. Raises `LabError` with pip's last lines.
    """
    constraints = (clone.root / "constraints.txt").read_bytes()
    folder = clone.root / "docker/wheels"
    for name in folders:
        projects = _FOLDERS[name]
        target = folder / name
        requirements = _requirements(clone, projects)
        stamp = hashlib.sha256(f"{PYTHON}\n{requirements}\n".encode() + constraints).hexdigest()
        stamp_file = folder / f"{name}.stamp"
        if stamp_file.is_file() and stamp_file.read_text() == stamp and target.is_dir():
            continue
        with replaced_folder(target) as fetched:
            (fetched / "requirements.txt").write_text(requirements, encoding="utf-8")
            _fetch(clone, fetched, announce, report)
            stamp_file.unlink(missing_ok=True)
        stamp_file.write_text(stamp)


@contextlib.contextmanager
def replaced_folder(target: Path) -> Iterator[Path]:
    """Yields an empty folder, which replaces `target` if the block ends without an error."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{target.name}-", dir=target.parent) as scratch:
        filled = Path(scratch) / target.name
        filled.mkdir()
        yield filled
        shutil.rmtree(target, ignore_errors=True)
        filled.rename(target)


def _requirements(clone: Clone, projects: Sequence[str]) -> str:
    """Returns the requirements of the projects, one a line."""
    command = [sys.executable, "-I", "lab/tools/extras.py", *projects]
    done = subprocess.run(command, cwd=clone.root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"the image's Python packages can't be listed: {done.stderr.strip()}")
    return done.stdout


def _fetch(clone: Clone, target: Path, announce: Report, report: Report) -> None:
    """Downloads the packages of the requirements.txt in `target` into `target`."""
    requirements, constraints = target / "requirements.txt", clone.root / "constraints.txt"
    if "\ntorch" in requirements.read_text(encoding="utf-8"):
        messages: list[str] = []
        torch = ["lab/tools/torch_wheel.py", "constraints.txt"]
        _download(clone, torch, ["--dest", str(target)], messages.append)
        if not any(target.glob("torch-*+cpu-*")):
            announce(messages[-1])  # says what to do
    # pip takes the CPU build in that folder, as the higher of two equal versions.
    sources = ["--find-links", str(target), "--constraint", str(constraints)]
    arguments = ["--dest", str(target), *sources, "--requirement", str(requirements)]
    _download(clone, ["-m", "pip"], arguments, report)


def _download(clone: Clone, pip: Sequence[str], arguments: Sequence[str], report: Report) -> None:
    """Downloads wheels for the image's Python. pip: Python's arguments that run pip."""
    platforms = ["manylinux2014_x86_64"]
    platforms += [f"manylinux_2_{minor}_x86_64" for minor in range(17, GLIBC_MINOR + 1)]
    command = [
        *(sys.executable, *pip, "download", "--no-input", "--progress-bar", "off"),
        *("--python-version", PYTHON, "--only-binary", ":all:"),
        *(argument for platform in platforms for argument in ("--platform", platform)),
        *arguments,
    ]
    try:
        run_long_command(command, report, clone.root)
    except LabError as error:
        raise LabError(f"the image's Python packages can't be fetched: {error}") from None
