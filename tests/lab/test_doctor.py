"""The doctor: what is missing is named, with the command that gets it."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from pmemlab import doctor
from pmemlab.doctor import Diagnosis, diagnose, diagnosis_table, missing_for_guest
from pmemlab.errors import MissingRequirementError


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A computer without any of the programs, the kernel, or Docker."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PMEMLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-docker.sock")
    monkeypatch.setattr(doctor, "_SYSTEM_PATH", str(tmp_path))
    monkeypatch.setattr("pmemlab.guest.initramfs._SYSTEM_PATH", str(tmp_path))
    monkeypatch.setattr("pmemlab.guest.kernel._ROOT", tmp_path)


@pytest.mark.usefixtures("bare")
def test_a_bare_computer_is_told_all_that_guests_want() -> None:
    missing = {
        error.what.split(",")[0].split(" ")[0]: error.remedy for error in missing_for_guest()
    }
    assert missing["QEMU"] == "apt-get install qemu-system-x86"
    assert missing["busybox"] == "apt-get install busybox-static"
    assert missing["ndctl"] == "apt-get install ndctl"
    assert missing["mkfs.ext4"] == "apt-get install e2fsprogs"
    assert "a" in missing  # a Linux kernel


@pytest.mark.usefixtures("bare")
def test_a_bare_computer_runs_processes_only() -> None:
    diagnoses = {diagnosis.kind: diagnosis for diagnosis in diagnose()}
    assert diagnoses["process"].runs
    assert not diagnoses["guest"].runs
    assert not diagnoses["container"].runs
    assert [error.remedy for error in diagnoses["container"].missing] == ["make docker"]


def test_the_table_has_a_row_a_kind_and_the_commands() -> None:
    missing = MissingRequirementError("QEMU", "apt-get install qemu-system-x86")
    console = Console(width=120, force_terminal=False)
    with console.capture() as capture:
        console.print(diagnosis_table([Diagnosis("process", ()), Diagnosis("guest", (missing,))]))
    text = capture.get()
    assert "process" in text
    assert "missing: QEMU" in text
    assert "apt-get install qemu-system-x86" in text
