"""The library that is loaded before libpmem and libc, compiled on first use."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from pmemlab.errors import LabError, MissingRequirementError
from pmemlab.guest.cache import build_once, cache_folder

__all__ = ["library"]

_SOURCES = Path(__file__).parent / "library"
_SONAME = "libpmem.so.1"
_COMPILE = [
    *("-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-D_GNU_SOURCE"),
    *("-Wall", "-Wextra", "-Wshadow", "-Werror"),
]
_LINK = [
    # Its C++ library is its own: programs may bring another.
    *("-shared", "-static-libstdc++", "-static-libgcc", "-Wl,--exclude-libs,ALL"),
    *(f"-Wl,-soname,{_SONAME}", f"-Wl,--version-script={_SOURCES / 'libpmem.map'}"),
]


@functools.cache
def library() -> Path:
    """Return its path. Raises `MissingRequirementError` without a C++ compiler, and `LabError`
    where that can't compile it.
    """
    compiler = _compiler()
    folder = cache_folder() / f"powercut-{_key(compiler)}"
    if not folder.exists():
        with build_once() as scratch:
            if not folder.exists():
                _build(compiler, scratch)
                published = scratch / "published"
                published.mkdir()
                (scratch / _SONAME).rename(published / _SONAME)
                published.rename(folder)
    if set(" :") & set(str(folder)):
        raise LabError(
            f"{folder}: LD_PRELOAD takes no path with spaces or colons; set PMEMLAB_CACHE"
        )
    return folder / _SONAME


def _compiler() -> str:
    asked = os.environ.get("CXX")
    for name in [asked] if asked else ["g++", "clang++", "c++"]:
        found = shutil.which(name)
        if found:
            return found
    raise MissingRequirementError(
        f"{asked or 'a C++ compiler'} isn't here, and emulated power cuts compile a library",
        "apt-get install g++ (or set CXX)",
    )


def _key(compiler: str) -> str:
    digest = hashlib.sha256()
    version = subprocess.run([compiler, "--version"], capture_output=True, check=False)
    digest.update(version.stdout + repr([compiler, _COMPILE, _LINK[:4]]).encode())
    for path in sorted(_SOURCES.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _build(compiler: str, scratch: Path) -> None:
    # As one: most of the time goes into the headers that all of them include.
    whole = scratch / "powercut.cc"
    sources = sorted(_SOURCES.glob("*.cc"))
    whole.write_text("".join(f'#include "{source}"\n' for source in sources))
    _run(
        [compiler, *_COMPILE, *_LINK, "-o", str(scratch / _SONAME), str(whole), "-ldl", "-pthread"]
    )


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LabError(f"{' '.join(command)}: {done.stderr.strip()}")
