"""Compiles, on first use, the library that is loaded before libpmem and libc."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from powercut.errors import PowercutError

__all__ = ["cache_folder", "library"]

_SOURCES = Path(__file__).parent / "library"
_SONAME = "libpmem.so.1"
_COMPILE = [
    *("-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-D_GNU_SOURCE"),
    *("-Wall", "-Wextra", "-Wshadow", "-Werror"),
]
_LINK = [
    # Links its C++ library statically: programs may bring another one.
    *("-shared", "-static-libstdc++", "-static-libgcc", "-Wl,--exclude-libs,ALL"),
    *(f"-Wl,-soname,{_SONAME}", f"-Wl,--version-script={_SOURCES / 'libpmem.map'}"),
]


def cache_folder() -> Path:
    """Returns the folder that keeps the library between runs: $POWERCUT_CACHE, or powercut in
    $XDG_CACHE_HOME, or ~/.cache/powercut. Made if need be. Raises `PowercutError`.
    """
    chosen = os.environ.get("POWERCUT_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(chosen) if chosen else Path(base) / "powercut"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable_cache(folder, error) from error
    return folder.absolute()


def _unusable_cache(folder: Path, error: OSError) -> PowercutError:
    return PowercutError(f"cache folder {folder}: {error.strerror}; set POWERCUT_CACHE")


@functools.cache
def library() -> Path:
    """Returns the library's path. Raises `PowercutError` if no C++ compiler can compile it."""
    compiler = _compiler()
    cache = cache_folder()
    folder = cache / f"library-{_key(compiler)}"
    if not folder.exists():
        try:
            with _locked(cache):
                if not folder.exists():
                    _publish(compiler, folder)
        except OSError as error:
            raise _unusable_cache(cache, error) from error
    if set(" :") & set(str(folder)):
        raise PowercutError(
            f"{folder}: LD_PRELOAD takes no path with spaces or colons; set POWERCUT_CACHE"
        )
    return folder / _SONAME


@contextlib.contextmanager
def _locked(cache: Path) -> Iterator[None]:
    """Has processes that need a new library wait for the first that compiles it, which takes
    seconds. On a file system that can't lock a folder, such as NFS, each compiles its own.
    """
    folder = os.open(cache, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _publish(compiler: str, folder: Path) -> None:
    """Compiles the library into a new folder, which appears whole or not at all. If two processes
    do so, the first wins.
    """
    unfinished = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
    try:
        _build(compiler, unfinished)
        try:
            unfinished.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _compiler() -> str:
    chosen = os.environ.get("CXX")
    for name in [chosen] if chosen else ["g++", "clang++", "c++"]:
        found = shutil.which(name)
        if found:
            return found
    raise PowercutError(
        f"{chosen or 'a C++ compiler'} isn't here, and emulated power cuts compile a library; "
        "to get one: apt-get install g++ (or set CXX)"
    )


def _key(compiler: str) -> str:
    digest = hashlib.sha256()
    version = subprocess.run([compiler, "--version"], capture_output=True, check=False)
    digest.update(version.stdout + repr([compiler, _COMPILE, _LINK[:4]]).encode())
    for path in sorted(_SOURCES.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _build(compiler: str, folder: Path) -> None:
    # All sources in one unit: most of the time goes into the headers that all of them include.
    source_text = "".join(f'#include "{source}"\n' for source in sorted(_SOURCES.glob("*.cc")))
    command = [compiler, *_COMPILE, *_LINK, "-o", str(folder / _SONAME), "-x", "c++", "-"]
    done = subprocess.run(
        [*command, "-ldl", "-pthread"],
        input=source_text,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise PowercutError(f"{' '.join(command)}: {done.stderr.strip()}")
