"""The edits of files on this computer for which a guest must drop its caches."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pmemlab.machines.guest.host_files import HostFiles, package_folders


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "code.py").write_text("old")
    return folder


def test_without_an_edit_nothing_is_reported(package: Path) -> None:
    files = HostFiles([package])
    files.has_changed([])
    assert not files.has_changed(["python", "/bin/sh"])


def test_an_edit_is_reported_once(package: Path) -> None:
    files = HostFiles([package])
    files.has_changed([])
    (package / "code.py").write_text("newer")
    assert files.has_changed([])
    assert not files.has_changed([])


def test_a_new_module_is_reported(package: Path) -> None:
    files = HostFiles([package])
    files.has_changed([])
    (package / "new.py").touch()
    assert files.has_changed([])


def test_a_compiled_file_is_not_reported(package: Path) -> None:
    files = HostFiles([package])
    files.has_changed([])
    (package / "code.cpython-311.pyc").touch()
    assert not files.has_changed([])


def test_a_file_that_a_command_names_is_reported_if_it_is_new_or_edited(
    package: Path, tmp_path: Path
) -> None:
    old = tmp_path / "old.csv"
    old.write_text("1")
    files = HostFiles([package])
    files._cached_since = old.stat().st_ctime + 1
    assert not files.has_changed(["wc", str(old), "/no/such/file"])
    os.utime(old, (1, 1))
    assert files.has_changed(["wc", str(old)])
    new = tmp_path / "new.csv"
    new.write_text("1")
    files._cached_since = new.stat().st_ctime - 1
    assert files.has_changed(["wc", str(new)])


def test_both_packages_are_watched() -> None:
    assert {"pmemlab", "embstore"} >= {folder.name for folder in package_folders()} >= {"pmemlab"}
