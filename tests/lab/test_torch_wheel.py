"""PyTorch's CPU build is asked for first, and whoever can't have it is told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pmemlab import torch_wheel

CLONE = Path(__file__).parents[2]


def _get(
    folder: Path, pip: str, monkeypatch: pytest.MonkeyPatch
) -> subprocess.CompletedProcess[str]:
    """Run the file as the Makefile does, with this script in the place of pip."""
    (folder / "pip.py").write_text(f"import sys\n{pip}\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    (folder / "constraints.txt").write_text("# one\ntorch==2.13.0\n")
    return subprocess.run(
        [sys.executable, "-I", torch_wheel.__file__, folder / "constraints.txt", "install", "-q"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_cpu_build_of_the_pinned_version_is_asked_for_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = _get(tmp_path, "print(sys.argv[1:])", monkeypatch)
    assert done.stdout == "['install', '-q', '--no-deps', 'torch==2.13.0+cpu']\n"
    assert (done.returncode, done.stderr) == (0, "")


def test_where_no_index_has_it_the_user_is_told_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = "sys.exit('ERROR: No matching distribution found for torch==2.13.0+cpu')"
    done = _get(tmp_path, pip, monkeypatch)
    assert done.returncode == 0  # what follows takes the plain build
    assert "2.5 GB of CUDA libraries" in done.stderr
    assert "pip config set global.extra-index-url" in done.stderr


def test_another_failure_of_pip_is_pip_s_to_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = _get(tmp_path, "sys.exit('ERROR: No space left on device')", monkeypatch)
    assert (done.returncode, done.stderr) == (1, "ERROR: No space left on device\n")


def test_the_clone_s_constraints_pin_a_version() -> None:
    assert torch_wheel.cpu_build((CLONE / "constraints.txt").read_text()).startswith("torch==2.")


@pytest.mark.parametrize("text", ["", "torch>=2\n", "torch==2.13.0+cpu\n"])
def test_constraints_that_pin_no_plain_version_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"constraints\.txt: must have a line torch==VERSION"):
        torch_wheel.cpu_build(text)
