"""Builds the core's native tests, as they are or under a sanitizer, and runs them."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SANITIZERS = ("thread", "address,undefined")


def build(program: str, sanitizer: str = "") -> Path:
    """Builds one program, or what changed of it; the builds of one sanitizer share a folder."""
    beside = Path(sys.executable).with_name("cmake")
    cmake = str(beside) if beside.exists() else shutil.which("cmake")
    assert cmake, "the native tests need cmake: pip install cmake"
    folder = ROOT / "build" / f"native-{sanitizer.replace(',', '-') or 'plain'}"
    configure = [cmake, "-S", "engine", "-B", str(folder), "-DCMAKE_BUILD_TYPE=Release"]
    configure += ["-DEMBSTORE_NATIVE_TESTS=ON", f"-DEMBSTORE_SANITIZE={sanitizer}"]
    subprocess.run(configure, check=True, cwd=ROOT)
    make = [cmake, "--build", str(folder), "--target", program, "--parallel", "2"]
    subprocess.run(make, check=True, cwd=ROOT)
    return folder / program


def run(program: Path, *arguments: str, timeout_s: float) -> str:
    """What it prints; an AssertionError with its last words where it fails."""
    done = subprocess.run(
        [str(program), *arguments], capture_output=True, text=True, timeout=timeout_s
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-4000:]
    return done.stdout
