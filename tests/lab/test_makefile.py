"""What the Makefile's targets set up: only what they need."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

CLONE = Path(__file__).parents[2]


def _plan(folder: Path, *arguments: str) -> str:
    """What make would do, in a clone where nothing is set up yet."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "engine", "docker"):
        if not (folder / name).exists():
            (folder / name).symlink_to(CLONE / name)
    return subprocess.run(
        ["make", "--dry-run", "--no-print-directory", *arguments],
        cwd=folder, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip


@pytest.mark.parametrize("target", ["doctor", "lab-down", "lab-up", "show"])
def test_a_command_that_trains_nothing_installs_neither_pytorch_nor_the_engine(
    tmp_path: Path, target: str
) -> None:
    plan = _plan(tmp_path, target)
    assert "-m pmemlab" in plan
    assert "torch" not in plan
    assert "pip install -q -c" not in plan
    assert "g++" not in plan


def test_what_trains_gets_pytorch_before_all_that_wants_it(tmp_path: Path) -> None:
    plan = _plan(tmp_path, "test")
    assert plan.index("torch_wheel.py constraints.txt install") < plan.index("-e '.[torch,lab")


def test_wheels_are_installed_without_an_index_and_without_a_compiler(tmp_path: Path) -> None:
    plan = _plan(tmp_path, "scenarios", "WHEELS=ready")
    assert "--no-index --find-links ready" in plan
    assert "g++" not in plan
    assert "torch_wheel.py" not in plan


def test_the_light_set_up_takes_what_the_lab_s_extra_takes() -> None:
    makefile = (CLONE / "Makefile").read_text()
    line = re.search(r"^LAB_REQUIREMENTS := (.*)$", makefile, re.MULTILINE)
    assert line is not None
    extra = re.search(r"^lab = \[(.*)\]$", (CLONE / "pyproject.toml").read_text(), re.MULTILINE)
    assert extra is not None
    light = [name for name in re.findall(r'"([^"]+)"', line[1]) if "python_version" not in name]
    assert light
    assert set(light) < set(re.findall(r'"([^"]+)"', extra[1]))
