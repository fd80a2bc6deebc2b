"""C programs for power cuts, and a function that compiles them."""

from __future__ import annotations

import ctypes.util
import shutil
import subprocess
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples" / "powercut"
_OWN = Path(__file__).parent


def compiled(
    source: Path, folder: Path, *flags: str, name: str = "", library: str = "pmem"
) -> Path:
    """Compiles a program into a folder and returns its path. Skips the test if this
    computer can't.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: apt-get install gcc")
    if library == "pmem" and ctypes.util.find_library("pmem") is None:
        pytest.skip("no libpmem: apt-get install libpmem1")
    if library == "pmemobj" and not Path("/usr/include/libpmemobj.h").exists():
        pytest.skip("no header of libpmemobj: apt-get install libpmemobj-dev")
    # Link by the run-time name, since only development packages have the plain name.
    links = {"pmem": ["-l:libpmem.so.1"], "pmemobj": ["-lpmemobj"], "": []}
    program = folder / (name or source.stem)
    own_header = ["-idirafter", str(_OWN / "include")]
    warnings = ["-Wall", "-Wextra", "-Wno-clobbered", "-Werror"]
    command = [compiler, "-O2", "-g", *warnings, *own_header, *flags, str(source)]
    subprocess.run([*command, "-o", str(program), *links[library], "-pthread"], check=True)
    return program


def cases_program(folder: Path) -> Path:
    return compiled(_OWN / "cases.c", folder)
