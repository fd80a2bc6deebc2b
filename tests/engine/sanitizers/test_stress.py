"""The core's stress test under the sanitizers. Builds take a minute, so `make check` runs them."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SEEDS = (1, 2, 3)


def cmake(*arguments: str) -> None:
    subprocess.run([str(Path(sys.executable).with_name("cmake")), *arguments], check=True, cwd=ROOT)


@pytest.mark.sanitizer
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_threads_that_read_and_train_one_table_break_nothing(sanitizer: str) -> None:
    build = ROOT / "build" / f"stress-{sanitizer.replace(',', '-')}"
    cmake(
        *("-S", "engine", "-B", str(build), "-DCMAKE_BUILD_TYPE=Release"),
        *("-DEMBSTORE_STRESS_TEST=ON", f"-DEMBSTORE_SANITIZE={sanitizer}"),
    )
    cmake("--build", str(build), "--parallel", "2")
    for seed in SEEDS:
        run = subprocess.run(
            [str(build / "table_stress"), str(seed)], capture_output=True, text=True, timeout=300
        )
        assert run.returncode == 0, run.stderr[-4000:]
        assert f"held: seed {seed}" in run.stdout
