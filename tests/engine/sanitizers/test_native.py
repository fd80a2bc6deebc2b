"""The native tests of the core's parts, as they are and under the sanitizers."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = ("admission_test", "coldest_rows_test", "leveldb_tier_test")


def cmake(*arguments: str) -> None:
    subprocess.run([str(Path(sys.executable).with_name("cmake")), *arguments], check=True, cwd=ROOT)


@pytest.mark.sanitizer
@pytest.mark.parametrize("sanitizer", ["", "thread", "address,undefined"])
def test_the_parts_of_the_core_hold_alone(sanitizer: str) -> None:
    build = ROOT / "build" / f"native-{sanitizer.replace(',', '-') or 'plain'}"
    cmake(
        *("-S", "engine", "-B", str(build), "-DCMAKE_BUILD_TYPE=Release"),
        *("-DEMBSTORE_NATIVE_TESTS=ON", f"-DEMBSTORE_SANITIZE={sanitizer}"),
    )
    cmake("--build", str(build), "--parallel", "2", "--target", *PROGRAMS)
    for program in PROGRAMS:
        run = subprocess.run([str(build / program)], capture_output=True, text=True, timeout=600)
        assert run.returncode == 0, run.stderr[-4000:]
        assert "held: " in run.stdout
