"""Builds the core's native tests, as they are or under a sanitizer, and runs them."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SANITIZERS = ("thread", "address,undefined")
PARALLEL = ("--parallel", "2")


def build(program: str, sanitizer: str = "") -> Path:
    """Builds one program, or what changed of it; the builds of one sanitizer share a folder."""
    folder = ROOT / "build" / f"native-{sanitizer.replace(',', '-') or 'plain'}"
    options = ["-DCMAKE_BUILD_TYPE=Release", f"-DEMBSTORE_SANITIZE={sanitizer}"]
    _configure(folder, options)
    subprocess.run([_cmake(), "--build", str(folder), "--target", program, *PARALLEL], check=True)
    return folder / program


def compile_with_clang() -> subprocess.CompletedProcess[str]:
    """Compiles every program with Clang, whose analysis of locks is an error where it finds one."""
    clang = shutil.which("clang++")
    assert clang, "the rules of locks are checked by clang++: install clang"
    folder = ROOT / "build" / "native-clang"
    _configure(folder, ["-DCMAKE_BUILD_TYPE=Debug", f"-DCMAKE_CXX_COMPILER={clang}"])
    command = [_cmake(), "--build", str(folder), *PARALLEL]
    return subprocess.run(command, capture_output=True, text=True)


def _cmake() -> str:
    beside = Path(sys.executable).with_name("cmake")
    cmake = str(beside) if beside.exists() else shutil.which("cmake")
    assert cmake, "the native tests need cmake: pip install cmake"
    return cmake


def _configure(folder: Path, options: list[str]) -> None:
    command = [_cmake(), "-S", "engine", "-B", str(folder), "-DEMBSTORE_NATIVE_TESTS=ON", *options]
    subprocess.run(command, check=True, cwd=ROOT)


def run(program: Path, *arguments: str, timeout_s: float) -> str:
    """What it prints; an AssertionError with its last words where it fails."""
    done = subprocess.run(
        [str(program), *arguments], capture_output=True, text=True, timeout=timeout_s
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-4000:]
    return done.stdout
