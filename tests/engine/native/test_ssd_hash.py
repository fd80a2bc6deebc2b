"""The SSDHASH tier alone: its native tests, which also kill it, starve it and race it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = Path("core/tiers/ssd_hash/testing/ssd_hash_test")


def build(name: str, *options: str) -> Path:
    """Builds the native tests in build/`name`, or what changed of them."""
    beside = Path(sys.executable).with_name("cmake")
    cmake = str(beside) if beside.exists() else shutil.which("cmake")
    assert cmake, "the native tests need cmake: pip install cmake"
    folder = ROOT / "build" / name
    configure = [cmake, "-S", "engine", "-B", str(folder), "-DCMAKE_BUILD_TYPE=Release"]
    subprocess.run([*configure, "-DEMBSTORE_NATIVE_TESTS=ON", *options], check=True, cwd=ROOT)
    build_target = [cmake, "--build", str(folder), "--target", "ssd_hash_test", "--parallel", "2"]
    subprocess.run(build_target, check=True, cwd=ROOT)
    return folder / PROGRAM


def run(program: Path, timeout_s: float) -> None:
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-4000:]
    assert done.stdout.endswith("held\n")


@pytest.mark.sanitizer
def test_what_is_written_is_read_whatever_happens_to_files_threads_and_the_process() -> None:
    run(build("native-plain"), timeout_s=600)


@pytest.mark.sanitizer
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_the_sanitizers_find_nothing(sanitizer: str) -> None:
    name = f"native-{sanitizer.replace(',', '-')}"
    run(build(name, f"-DEMBSTORE_SANITIZE={sanitizer}"), timeout_s=1800)
