"""Python packages for the image, fetched outside of it.

They are fetched here because a container has neither this user's pip configuration (an index of
their own, a folder of wheels, a proxy's certificate) nor, often, a way to the network.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pmemlab.clone import Clone
from pmemlab.container_engine.long_command import Report, run_long_command
from pmemlab.errors import LabError
from pmemlab.extras import requirements
from pmemlab.torch_wheel import advice, alone, cpu_build, is_not_there

if sys.version_info >= (3, 11):
    import tomllib
else:  # pytest, which the lab depends on, brings it where Python has none
    import tomli as tomllib

__all__ = ["prepare_wheels"]

# The Python of the image's Debian, and the newest C library that its wheels may need.
_PYTHON = "3.11"
_GLIBC_MINOR = 36
_EXTRAS = ("torch", "lab", "cluster", "keras")


def prepare_wheels(clone: Clone, announce: Report, report: Report) -> None:
    """Fill docker/wheels/run (the machine's packages) and docker/wheels/build (the build's).

    Does nothing where they are as pyproject.toml and constraints.txt ask. The user's own pip
    configuration decides where wheels come from; PyTorch is its build for the CPU where it can be
    had, and else announce is told what that costs. Raises `LabError` with pip's last lines.
    """
    pyproject = tomllib.loads((clone.root / "pyproject.toml").read_text(encoding="utf-8"))
    constraints = (clone.root / "constraints.txt").read_bytes()
    folder = clone.root / "docker/wheels"
    for name, wanted_there in _requirements(pyproject).items():
        target = folder / name
        wanted = "\n".join(wanted_there)
        stamp = hashlib.sha256(f"{_PYTHON}\n{wanted}\n".encode() + constraints).hexdigest()
        stamp_file = folder / f"{name}.stamp"
        if stamp_file.is_file() and stamp_file.read_text() == stamp and target.is_dir():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=folder) as scratch:
            fetched = Path(scratch) / name
            fetched.mkdir()
            _fetch(wanted_there, clone.root / "constraints.txt", fetched, announce, report)
            (fetched / "requirements.txt").write_text(wanted + "\n", encoding="utf-8")
            stamp_file.unlink(missing_ok=True)
            shutil.rmtree(target, ignore_errors=True)
            fetched.rename(target)
        stamp_file.write_text(stamp)


def _requirements(pyproject: dict[str, Any]) -> dict[str, list[str]]:
    """Folder -> requirements. The build's has the tools that pip would else fetch by itself."""
    run = requirements(pyproject, _EXTRAS)
    cmake = pyproject["tool"]["scikit-build"]["cmake"]["version"]
    return {"run": run, "build": [*pyproject["build-system"]["requires"], f"cmake{cmake}", "ninja"]}


def _fetch(
    requirements: Sequence[str], constraints: Path, target: Path, announce: Report, report: Report
) -> None:
    if any(requirement.startswith("torch") for requirement in requirements):
        torch = cpu_build(constraints.read_text(encoding="utf-8"))
        try:
            _download(alone(torch), target, report)
        except LabError as error:
            if not is_not_there(torch, str(error)):
                raise
            announce(advice(torch))
    # Of what lies there already, pip takes the CPU build, as the higher of two equal versions.
    beside = ["--find-links", str(target), "--constraint", str(constraints)]
    _download([*beside, *requirements], target, report)


def _download(arguments: Sequence[str], target: Path, report: Report) -> None:
    platforms = ["manylinux2014_x86_64"]
    platforms += [f"manylinux_2_{minor}_x86_64" for minor in range(17, _GLIBC_MINOR + 1)]
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-input", "--progress-bar", "off"),
        *("--dest", str(target), "--python-version", _PYTHON, "--only-binary", ":all:"),
        *(argument for platform in platforms for argument in ("--platform", platform)),
        *arguments,
    ]
    try:
        run_long_command(command, report, target)
    except LabError as error:
        raise LabError(f"the image's Python packages can't be fetched: {error}") from None
