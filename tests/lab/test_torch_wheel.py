"""torch_wheel.py installs PyTorch's CPU build, or says how to get it if no index has it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CLONE = Path(__file__).parents[2]
TORCH_WHEEL = CLONE / "lab/tools/torch_wheel.py"


def _run_torch_wheel(
    folder: Path,
    pip: str,
    monkeypatch: pytest.MonkeyPatch,
    constraints: str = "# one\ntorch==2.13.0\n",
) -> subprocess.CompletedProcess[str]:
    """Runs the file as the Makefile does, with the Python code `pip` in place of pip."""
    (folder / "pip.py").write_text(f"import sys\n{pip}\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    (folder / "constraints.txt").write_text(constraints)
    return subprocess.run(
        [sys.executable, "-I", str(TORCH_WHEEL), folder / "constraints.txt", "install", "-q"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_cpu_build_of_the_pinned_version_is_installed_without_dependencies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = _run_torch_wheel(tmp_path, "print(sys.argv[1:])", monkeypatch)
    assert done.stdout == "['install', '-q', '--no-deps', 'torch==2.13.0+cpu']\n"
    assert (done.returncode, done.stderr) == (0, "")


def test_if_no_index_has_the_cpu_build_the_user_is_told_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for says in (
        "No matching distribution found for torch==2.13.0+cpu",
        # if pip is configured with a constraint on torch
        "Cannot install torch==2.13.0+cpu because these package versions have conflicting ones.",
    ):
        done = _run_torch_wheel(tmp_path, f"sys.exit('ERROR: {says}')", monkeypatch)
        assert done.returncode == 0  # what follows takes the plain build
        assert "2.5 GB of CUDA libraries" in done.stderr
        assert "pip config set global.extra-index-url" in done.stderr


def test_another_failure_of_pip_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = _run_torch_wheel(tmp_path, "sys.exit('ERROR: No space left on device')", monkeypatch)
    assert (done.returncode, done.stderr) == (1, "ERROR: No space left on device\n")


def test_the_clone_s_constraints_pin_a_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = _run_torch_wheel(
        tmp_path,
        "print(sys.argv[-1])",
        monkeypatch,
        constraints=(CLONE / "constraints.txt").read_text(),
    )
    assert done.stdout.startswith("torch==2.")


def test_constraints_without_a_plain_pinned_version_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in ["", "torch>=2\n", "torch==2.13.0+cpu\n"]:
        done = _run_torch_wheel(tmp_path, "", monkeypatch, constraints=text)
        assert done.returncode != 0
        assert "constraints.txt: must have a line torch==VERSION" in done.stderr
