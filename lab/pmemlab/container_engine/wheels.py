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

if sys.version_info >= (3, 11):
    import tomllib
else:  # pytest, which the lab depends on, brings it where Python has none
    import tomli as tomllib

__all__ = ["prepare_wheels"]

# The Python of the image's Debian, and the newest C library that its wheels may need.
_PYTHON = "3.11"
_GLIBC_MINOR = 36
_EXTRAS = ("torch", "lab")


def prepare_wheels(clone: Clone, report: Report) -> None:
    """Fill docker/wheels/run (the machine's packages) and docker/wheels/build (the build's).

    Does nothing where they are as pyproject.toml and constraints.txt ask. The user's own pip
    configuration decides where wheels come from. Raises `LabError` with pip's last lines.
    """
    pyproject = tomllib.loads((clone.root / "pyproject.toml").read_text(encoding="utf-8"))
    constraints = (clone.root / "constraints.txt").read_bytes()
    folder = clone.root / "docker/wheels"
    for name, requirements in _requirements(pyproject).items():
        target = folder / name
        wanted = "\n".join(requirements)
        stamp = hashlib.sha256(f"{_PYTHON}\n{wanted}\n".encode() + constraints).hexdigest()
        stamp_file = folder / f"{name}.stamp"
        if stamp_file.is_file() and stamp_file.read_text() == stamp and target.is_dir():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=folder) as scratch:
            fetched = Path(scratch) / name
            fetched.mkdir()
            _download(requirements, clone.root / "constraints.txt", fetched, report)
            (fetched / "requirements.txt").write_text(wanted + "\n", encoding="utf-8")
            stamp_file.unlink(missing_ok=True)
            shutil.rmtree(target, ignore_errors=True)
            fetched.rename(target)
        stamp_file.write_text(stamp)


def _requirements(pyproject: dict[str, Any]) -> dict[str, list[str]]:
    """Folder -> requirements. The build's has the tools that pip would else fetch by itself."""
    project = pyproject["project"]
    run = list(project["dependencies"])
    for extra in _EXTRAS:
        run += project["optional-dependencies"][extra]
    cmake = pyproject["tool"]["scikit-build"]["cmake"]["version"]
    return {"run": run, "build": [*pyproject["build-system"]["requires"], f"cmake{cmake}", "ninja"]}


def _download(requirements: Sequence[str], constraints: Path, target: Path, report: Report) -> None:
    platforms = ["manylinux2014_x86_64"]
    platforms += [f"manylinux_2_{minor}_x86_64" for minor in range(17, _GLIBC_MINOR + 1)]
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-input", "--progress-bar", "off"),
        *("--dest", str(target), "--constraint", str(constraints)),
        *("--python-version", _PYTHON, "--only-binary", ":all:"),
        *(argument for platform in platforms for argument in ("--platform", platform)),
        *requirements,
    ]
    try:
        run_long_command(command, report, target)
    except LabError as error:
        raise LabError(f"the image's Python packages can't be fetched: {error}") from None
