"""Makes this clone's own wheels on this computer if the image can run them.

Otherwise the image's build compiles them, even if `make setup` has just compiled the same sources.
"""

from __future__ import annotations

import fcntl
import platform
import re
import sys
from importlib.util import find_spec
from pathlib import Path

from pmemlab.machines.container.clone import Clone
from pmemlab.machines.container.image_system import PYTHON, SUITE
from pmemlab.machines.container.long_command import Report, run_long_command
from pmemlab.machines.container.wheels import replaced_folder

__all__ = ["make_project_wheels"]

_TAG = f"cp{PYTHON.replace('.', '')}"
# The folder in which `pip install -e engine` compiles the core.
_OBJECTS = f"build/{_TAG}-{_TAG}-linux_x86_64"
_BUILD_TOOLS = ("pip", "scikit_build_core", "nanobind", "hatchling")
# Matches objects of the system's compiler without the user's flags, which may ask for instructions
# that a guest's processor lacks.
_COMPILED_PLAINLY = re.compile(
    r"^CMAKE_CXX_COMPILER:\w+=/usr/bin/.*^CMAKE_CXX_FLAGS:\w+=$", re.M | re.S
)


def make_project_wheels(clone: Clone, report: Report) -> bool:
    """Fills docker/wheels/own. Returns False if this computer has another Debian or Python than the
    image, or no compiled objects: then the image's build compiles the wheels.

    Raises `LabError` with the last lines of the command that failed.
    """
    if not (_matches_image_system() and _has_compiled(clone.root / _OBJECTS)):
        return False
    with (
        replaced_folder(clone.root / "docker/wheels/own") as made,
        (clone.root / _OBJECTS / "lock").open("w") as lock,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)  # the native tests are compiled there, too
        options = ["--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", str(made)]
        command = [sys.executable, "-m", "pip", "wheel", *options, "./engine", "./lab"]
        run_long_command(command, report, clone.root)
    return True


def _matches_image_system() -> bool:
    try:
        system = platform.freedesktop_os_release()
    except OSError:
        return False
    return (
        (system.get("ID"), system.get("VERSION_CODENAME")) == ("debian", SUITE)
        and platform.machine() == "x86_64"
        and f"{sys.version_info.major}.{sys.version_info.minor}" == PYTHON
    )


def _has_compiled(objects: Path) -> bool:
    settings = objects / "CMakeCache.txt"
    return (
        all(find_spec(tool) for tool in _BUILD_TOOLS)
        and settings.is_file()
        and _COMPILED_PLAINLY.search(settings.read_text(encoding="utf-8")) is not None
    )
