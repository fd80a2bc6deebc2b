"""Each target of the Makefile sets up only what it needs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

CLONE = Path(__file__).parents[2]


def _plan(folder: Path, *arguments: str) -> str:
    """Returns the commands that make would run in a clone where nothing is set up yet."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "engine", "lab", "docker"):
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
    assert ".venv/bin/pmemlab" in plan
    assert "pip install -q -c constraints.txt -e lab" in plan
    assert "torch" not in plan
    assert "engine" not in plan.replace("docker/engine.sh", "")
    assert "g++" not in plan


def test_for_tests_pytorch_is_installed_before_its_dependents(tmp_path: Path) -> None:
    plan = _plan(tmp_path, "test")
    assert plan.index("torch_wheel.py constraints.txt install") < plan.index(
        "-r .venv/requirements.txt"
    )


def test_scenarios_install_neither_pytorch_nor_development_tools(tmp_path: Path) -> None:
    plan = _plan(tmp_path, "scenarios")
    assert "extras.py engine 'lab[report]'" in plan
    for wanted_by_others in ("torch", "keras", "cluster", "dev"):
        assert wanted_by_others not in plan.replace("/dev/null", "").replace("-dev", "")


def test_wheels_are_installed_without_an_index_and_without_a_compiler(tmp_path: Path) -> None:
    plan = _plan(tmp_path, "scenarios", "WHEELS=ready")
    assert "--no-index --find-links ready" in plan
    assert "g++" not in plan
    assert "torch_wheel.py" not in plan


def test_clean_removes_all_ignored_files_except_the_user_s_certificates(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(tmp_path), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    git("init", "--quiet")
    for name in ("Makefile", ".gitignore"):
        (tmp_path / name).write_text((CLONE / name).read_text())
    made = [
        ".venv/bin/python", ".lab/state", "build/x/y.o", "dist/w.whl", "wheels/w.whl", "results/r",
        "docker/wheels/run/w.whl", "lab/pmemlab/__pycache__/m.pyc", "engine/embstore/_core.abi3.so",
        "engine/embstore/bench/_yardsticks.so", "engine/p.egg-info/PKG-INFO", ".hypothesis/a",
        ".mypy_cache/a", ".pytest_cache/a", ".ruff_cache/a", "docker/extra-ca/mine.crt",
    ]  # fmt: skip
    for name in made:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    ignored = (tmp_path / ".gitignore").read_text().split()
    tops = {line.strip("/") for line in ignored if line.startswith("/") and line.endswith("/")}
    assert tops <= {name[: len(top)] for name in made for top in tops}  # each is in `made`
    subprocess.run(["make", "clean"], cwd=tmp_path, capture_output=True, check=True)
    left = git("status", "--ignored", "--porcelain", "--untracked-files=all").splitlines()
    assert [line for line in left if line.startswith("!!")] == ["!! docker/extra-ca/mine.crt"]


def test_clean_cache_removes_the_caches_of_lab_and_powercut_and_nothing_else(
    tmp_path: Path,
) -> None:
    lab, powercut = tmp_path / "my cache", tmp_path / "its cache"
    (lab / "kernel-1234-6.1.0").mkdir(parents=True)
    (powercut / "library-1234").mkdir(parents=True)
    for name in ("initramfs-guest-1.cpio", "accelerator.json", "lock", "precious"):
        (lab / name).touch()
    (powercut / "precious").touch()
    command = ["make", "-f", str(CLONE / "Makefile"), "clean-cache"]
    command += [f"PMEMLAB_CACHE={lab}", f"POWERCUT_CACHE={powercut}"]
    for cache in (lab, powercut):
        subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
        assert [path.name for path in cache.iterdir()] == ["precious"]
    for cache in (lab, powercut):
        (cache / "precious").unlink()
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    assert not lab.exists()
    assert not powercut.exists()
