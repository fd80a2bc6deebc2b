"""Builds the core's native tests, as they are or under a sanitizer, and runs them."""

import fcntl
import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SANITIZERS = ("thread", "address,undefined")


def build(program: str, sanitizer: str = "") -> Path:
    """One of the programs, which are built together, or what changed of them.

    Without a sanitizer by Clang, which is to compile them all anyway for its analysis of locks.
    """
    built = compile_all(sanitizer)
    assert built.returncode == 0, built.stdout[-8000:] + built.stderr[-2000:]
    return _folder(sanitizer) / program


@functools.cache
def compile_all(sanitizer: str = "") -> subprocess.CompletedProcess[str]:
    """Of Clang's analysis of locks, an error is one of the compilation."""
    folder = _folder(sanitizer)
    folder.mkdir(parents=True, exist_ok=True)
    options = ["-DCMAKE_BUILD_TYPE=Release", f"-DEMBSTORE_SANITIZE={sanitizer}"]
    if not sanitizer:
        clang = shutil.which("clang++")
        assert clang, "the rules of locks are checked by clang++: install clang"
        options.append(f"-DCMAKE_CXX_COMPILER={clang}")
    ninja = f"-DCMAKE_MAKE_PROGRAM={_tool('ninja')}"
    configure = [_tool("cmake"), "-G", "Ninja", ninja, "-S", "engine", "-B", str(folder)]
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests may run in several processes
        subprocess.run([*configure, "-DEMBSTORE_NATIVE_TESTS=ON", *options], check=True, cwd=ROOT)
        command = [_tool("cmake"), "--build", str(folder), "--parallel", str(_processors())]
        return subprocess.run(command, capture_output=True, text=True)


def run(program: Path, *arguments: str, timeout_s: float) -> str:
    """What it prints; an AssertionError with its last words where it fails."""
    done = subprocess.run(
        [str(program), *arguments], capture_output=True, text=True, timeout=timeout_s
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-4000:]
    return done.stdout


def _folder(sanitizer: str) -> Path:
    return ROOT / "build" / "native" / (sanitizer.replace(",", "-") or "clang")


def _processors() -> int:
    return len(os.sched_getaffinity(0))


def _tool(name: str) -> str:
    beside = Path(sys.executable).with_name(name)
    tool = str(beside) if beside.exists() else shutil.which(name)
    assert tool, f"the native tests need {name}: pip install {name}"
    return tool
