"""The image takes wheels from this computer only if the image's build would make the same."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pmemlab.errors import LabError
from pmemlab.machines.container import project_wheels
from pmemlab.machines.container.clone import Clone
from pmemlab.machines.container.long_command import Report
from pmemlab.machines.container.project_wheels import make_project_wheels

PLAIN = {"CMAKE_CXX_COMPILER:FILEPATH": "/usr/bin/g++", "CMAKE_CXX_FLAGS:STRING": ""}


class Pip:
    """Stands in for `pip wheel`."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.fails = False

    def __call__(self, command: Sequence[str], _report: Report, _folder: Path) -> None:
        if self.fails:
            raise LabError("python failed (exit status 1):\ntable.cc:7: error")
        self.calls.append(list(command))
        made = Path(command[command.index("--wheel-dir") + 1])
        (made / f"embstore-{len(self.calls)}.whl").touch()


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> Pip:
    """A fake pip, on a computer with the image's system, Python version and processor."""
    pip = Pip()
    monkeypatch.setattr(project_wheels, "run_long_command", pip)
    monkeypatch.setattr(project_wheels, "find_spec", lambda _: True)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(project_wheels, "PYTHON", ".".join(map(str, sys.version_info[:2])))
    _system(monkeypatch, "debian", "bookworm")
    return pip


def _system(monkeypatch: pytest.MonkeyPatch, name: str, version: str) -> None:
    release = {"ID": name, "VERSION_CODENAME": version}
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: release)


def _clone_with_build(root: Path, **settings: str) -> Clone:
    objects = root / project_wheels._OBJECTS
    objects.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{name}={value}\n" for name, value in sorted({**PLAIN, **settings}.items()))
    (objects / "CMakeCache.txt").write_text(f"# settings\nBUILD_TESTING:BOOL=ON\n{text}")
    return Clone(root)


def _wheels_of(clone: Clone) -> list[str]:
    return sorted(path.name for path in (clone.root / "docker/wheels/own").iterdir())


def test_wheels_are_built_each_time_and_replace_the_older_wheels(pip: Pip, tmp_path: Path) -> None:
    clone = _clone_with_build(tmp_path)
    for call in (1, 2):
        assert make_project_wheels(clone, lambda _: None)
        assert _wheels_of(clone) == [f"embstore-{call}.whl"]
    assert pip.calls[0][-2:] == ["./engine", "./lab"]
    assert [path.name for path in (tmp_path / "docker/wheels").iterdir()] == ["own"]


def test_a_different_system_python_or_processor_builds_no_wheels(
    monkeypatch: pytest.MonkeyPatch, pip: Pip, tmp_path: Path
) -> None:
    clone = _clone_with_build(tmp_path)
    for name, version in (("ubuntu", "noble"), ("debian", "trixie"), ("raspbian", "bookworm")):
        _system(monkeypatch, name, version)
        assert not make_project_wheels(clone, lambda _: None)
    _system(monkeypatch, "debian", "bookworm")
    with monkeypatch.context() as other:
        other.setattr(project_wheels, "PYTHON", "2.7")
        assert not make_project_wheels(clone, lambda _: None)
    with monkeypatch.context() as other:
        other.setattr(platform, "machine", lambda: "aarch64")
        assert not make_project_wheels(clone, lambda _: None)
    assert pip.calls == []
    assert make_project_wheels(clone, lambda _: None)


def test_different_compiler_settings_build_no_wheels(pip: Pip, tmp_path: Path) -> None:
    assert not make_project_wheels(Clone(tmp_path), lambda _: None)
    for setting, value in (
        ("CMAKE_CXX_FLAGS:STRING", "-march=native"),
        ("CMAKE_CXX_COMPILER:FILEPATH", "/opt/conda/bin/g++"),
    ):
        assert not make_project_wheels(
            _clone_with_build(tmp_path, **{setting: value}), lambda _: None
        )
    assert pip.calls == []


def test_without_the_build_tools_no_wheels_are_built(
    monkeypatch: pytest.MonkeyPatch, pip: Pip, tmp_path: Path
) -> None:
    clone = _clone_with_build(tmp_path)
    monkeypatch.setattr(
        project_wheels, "find_spec", lambda tool: tool != "scikit_build_core" or None
    )
    assert not make_project_wheels(clone, lambda _: None)
    assert pip.calls == []


def test_a_failed_build_is_an_error_and_keeps_the_older_wheels(pip: Pip, tmp_path: Path) -> None:
    clone = _clone_with_build(tmp_path)
    assert make_project_wheels(clone, lambda _: None)
    pip.fails = True
    with pytest.raises(LabError, match=r"table\.cc:7: error"):
        make_project_wheels(clone, lambda _: None)
    assert _wheels_of(clone) == ["embstore-1.whl"]
