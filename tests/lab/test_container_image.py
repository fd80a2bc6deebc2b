"""The image of a machine: the wheels that are fetched for it, and the output while it is built."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from pmemlab.errors import LabError
from pmemlab.machines.container import wheels
from pmemlab.machines.container.clone import Clone
from pmemlab.machines.container.long_command import Report, run_long_command
from pmemlab.machines.container.wheels import prepare_wheels

CLONE = Path(__file__).parents[2]
FOLDERS = ("run", "build", "servers")


def _ignore(_: str) -> None:
    pass


class Pip:
    """Stands in for `pip download`."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.fails = False
        self.has_cpu_build = True

    def __call__(
        self,
        command: Sequence[str],
        report: Report,
        _folder: Path,
        _environment: Mapping[str, str] | None = None,
    ) -> None:
        if self.fails:
            raise LabError("python failed (exit status 1):\nno matching distribution for torch")
        self.calls.append(list(command))
        target = Path(command[command.index("--dest") + 1])
        if "lab/tools/torch_wheel.py" not in command:
            (target / f"call-{len(self.calls)}.whl").touch()
        elif self.has_cpu_build:
            (target / "torch-9+cpu-cp311.whl").touch()
        else:
            report("the plain build has 2.5 GB of CUDA libraries")


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> Pip:
    pip = Pip()
    monkeypatch.setattr(wheels, "run_long_command", pip)
    return pip


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    for name in ("engine/pyproject.toml", "lab/pyproject.toml", "constraints.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(CLONE / name, tmp_path / name)
    (tmp_path / "lab/tools").symlink_to(CLONE / "lab/tools")
    return Clone(tmp_path)


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_machine_s_image_has_the_packages_of_both_projects_and_no_others(
    pip: Pip, clone: Clone
) -> None:
    prepare_wheels(clone, ("run",), _ignore, _ignore)
    requirements = (clone.root / "docker/wheels/run/requirements.txt").read_text()
    assert "numpy" in requirements
    assert "docker" in requirements
    assert "torch" not in requirements
    assert not (clone.root / "docker/wheels/servers").exists()
    (call,) = pip.calls
    assert call[-1].endswith("/requirements.txt")


def test_for_servers_pytorch_s_cpu_build_is_fetched_first_and_then_used(
    pip: Pip, clone: Clone
) -> None:
    messages: list[str] = []
    prepare_wheels(clone, ("servers",), messages.append, _ignore)
    requirements = (clone.root / "docker/wheels/servers/requirements.txt").read_text()
    assert "ray" in requirements
    alone, rest = pip.calls
    assert "lab/tools/torch_wheel.py" in alone
    assert rest[rest.index("--find-links") + 1] == alone[alone.index("--dest") + 1]
    assert messages == []


def test_without_a_cpu_build_the_plain_build_is_fetched_and_its_size_reported(
    pip: Pip, clone: Clone
) -> None:
    pip.has_cpu_build = False
    messages: list[str] = []
    prepare_wheels(clone, FOLDERS, messages.append, _ignore)
    assert messages == ["the plain build has 2.5 GB of CUDA libraries"]


def test_unreadable_project_files_are_a_lab_error(pip: Pip, clone: Clone) -> None:
    (clone.root / "lab/pyproject.toml").write_text("[project")
    with pytest.raises(LabError, match=r"(?s)packages can't be listed.*lab/pyproject.toml"):
        prepare_wheels(clone, FOLDERS, _ignore, _ignore)
    assert pip.calls == []


@pytest.mark.usefixtures("pip")
def test_the_build_folder_has_the_build_tools_of_both_projects(clone: Clone) -> None:
    prepare_wheels(clone, FOLDERS, _ignore, _ignore)
    requirements = (clone.root / "docker/wheels/build/requirements.txt").read_text()
    assert "scikit-build-core" in requirements
    assert "hatchling" in requirements
    assert "cmake" in requirements


def test_wheels_follow_the_constraints_and_are_never_built(pip: Pip, clone: Clone) -> None:
    prepare_wheels(clone, FOLDERS, _ignore, _ignore)
    for call in pip.calls:
        if "lab/tools/torch_wheel.py" not in call:  # torch_wheel.py pins its version itself
            assert call[call.index("--constraint") + 1] == str(clone.root / "constraints.txt")
        assert call[call.index("--only-binary") + 1] == ":all:"


def test_fetched_wheels_are_not_fetched_again(pip: Pip, clone: Clone) -> None:
    prepare_wheels(clone, FOLDERS, _ignore, _ignore)
    before = _names(clone.root / "docker/wheels/run")
    calls = len(pip.calls)
    prepare_wheels(clone, FOLDERS, _ignore, _ignore)
    assert len(pip.calls) == calls
    assert _names(clone.root / "docker/wheels/run") == before


@pytest.mark.usefixtures("pip")
def test_a_changed_constraint_replaces_all_fetched_wheels(clone: Clone) -> None:
    prepare_wheels(clone, FOLDERS, _ignore, _ignore)
    (clone.root / "constraints.txt").write_text("torch==9\n")
    prepare_wheels(clone, FOLDERS, _ignore, _ignore)
    assert _names(clone.root / "docker/wheels/run") == ["call-5.whl", "requirements.txt"]


def test_a_failed_fetch_keeps_the_old_wheels(pip: Pip, clone: Clone) -> None:
    prepare_wheels(clone, FOLDERS, _ignore, _ignore)
    before = _names(clone.root / "docker/wheels/run")
    (clone.root / "constraints.txt").write_text("torch==9\n")
    pip.fails = True
    with pytest.raises(LabError, match=r"(?s)can't be fetched.*no matching distribution"):
        prepare_wheels(clone, FOLDERS, _ignore, _ignore)
    assert _names(clone.root / "docker/wheels/run") == before
    made = [f"{name}{kind}" for name in sorted(FOLDERS) for kind in ("", ".stamp")]
    assert _names(clone.root / "docker/wheels") == made


def test_a_long_command_is_followed_line_by_line(tmp_path: Path) -> None:
    lines: list[str] = []
    run_long_command(["sh", "-c", "echo one; echo; echo two >&2"], lines.append, tmp_path)
    assert lines == ["one", "two"]


def test_a_long_command_that_fails_is_a_lab_error_with_its_last_lines(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"(?s)^sh failed \(exit status 4\).*disk full") as caught:
        run_long_command(["sh", "-c", "seq 1000; echo disk full; exit 4"], _ignore, tmp_path)
    assert "\n1\n" not in str(caught.value)


def test_the_dockerfile_copies_every_module_that_unpacking_the_kernel_imports(
    tmp_path: Path,
) -> None:
    """The image's kernel stage has only a few of the lab's files and no third-party package."""
    lines = (CLONE / "docker/Dockerfile").read_text().splitlines()
    copies = [line.split()[1:] for line in lines if line.startswith("COPY") and "/unpack/" in line]
    for *sources, target in copies:
        folder = tmp_path / target.removeprefix("/unpack/")
        folder.mkdir(parents=True, exist_ok=True)
        for source in sources:
            shutil.copy(CLONE / source, folder)
    (module,) = (
        line.split()[-1] for line in lines if "PYTHONPATH=/unpack" in line and " -m " in line
    )
    subprocess.run(
        [sys.executable, "-S", "-P", "-c", f"import {module}"],
        env={"PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        check=True,
    )
