"""The doctor names each missing requirement with the command that installs it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from pmemlab import doctor
from pmemlab.doctor import Diagnosis, diagnose, diagnosis_table
from pmemlab.errors import MissingRequirementError
from pmemlab.machines import capacity, host, process
from pmemlab.machines.guest import machine as guest
from pmemlab.topology import load_topology

GIB = 1 << 30


@pytest.fixture
def bare_computer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A computer without any of the programs, the kernel, or Docker."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PMEMLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-docker.sock")
    monkeypatch.setattr(guest, "PROGRAM_PATH", str(tmp_path))
    monkeypatch.setattr("pmemlab.machines.guest.initramfs._SYSTEM_PATH", str(tmp_path))
    monkeypatch.setattr("pmemlab.machines.guest.kernel._ROOT", tmp_path)


@pytest.mark.usefixtures("bare_computer")
def test_on_a_bare_computer_every_requirement_of_guests_is_named() -> None:
    missing = {
        error.what.split(",")[0].split(" ")[0]: error.remedy
        for error in guest.requirements(load_topology("fsdax"))
    }
    assert missing["QEMU"] == "apt-get install qemu-system-x86"
    assert missing["busybox"] == "apt-get install busybox-static"
    assert missing["ndctl"] == "apt-get install ndctl"
    assert missing["mkfs.ext4"] == "apt-get install e2fsprogs"
    assert "a" in missing  # a Linux kernel


@pytest.mark.usefixtures("bare_computer")
def test_a_bare_computer_runs_processes_only() -> None:
    diagnoses = {diagnosis.kind: diagnosis for diagnosis in diagnose()}
    assert diagnoses["process"].can_run
    assert not diagnoses["guest"].can_run
    assert not diagnoses["container"].can_run
    (error,) = diagnoses["container"].missing
    assert "no Docker engine answers at DOCKER_HOST" in error.what


@pytest.mark.usefixtures("bare_computer")  # else a guest is booted to try KVM
def test_the_doctor_names_this_computer_s_media(monkeypatch: pytest.MonkeyPatch) -> None:
    facts: dict[str, object] = {
        "regions": [{"name": "region0"}],
        "cxl_memdevs": [],
        "nodes_without_cpus": [1, 3],
    }
    monkeypatch.setattr(doctor, "read_facts", lambda **_: facts)
    monkeypatch.setattr(host, "virtual_machine", lambda: None)
    note = (
        "PMem regions: region0; CXL devices: none; nodes without CPUs: 1, 3; disks: can't be read"
    )
    assert note in _notes("host")
    assert "virtual machine" not in _notes("host")
    monkeypatch.setattr(host, "virtual_machine", lambda: "its vendor is QEMU")
    assert "measures DRAM alone" in _notes("host")


@pytest.mark.usefixtures("bare_computer")
def test_a_wrong_docker_context_leaves_the_rest_diagnosed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOCKER_HOST")
    monkeypatch.setenv("DOCKER_CONTEXT", "none-of-that-name")
    diagnoses = {diagnosis.kind: diagnosis for diagnosis in diagnose()}
    assert diagnoses["process"].can_run
    (error,) = diagnoses["container"].missing
    assert "none-of-that-name" in error.what


@pytest.mark.usefixtures("bare_computer")
def test_a_missing_clone_is_reported_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    engine = SimpleNamespace(version=lambda: {"Version": "1"}, info=dict)
    monkeypatch.setattr("pmemlab.machines.container.connection.connect", lambda: engine)
    monkeypatch.chdir(tmp_path)
    (found,) = (diagnosis for diagnosis in diagnose() if diagnosis.kind == "container")
    missing = [error.what for error in (*found.missing, *found.partly_missing)]
    assert ["not inside a clone" in each for each in missing].count(True) == 1, missing


def _notes(kind: str) -> str:
    return "\n".join(next(found for found in diagnose() if found.kind == kind).notes)


@pytest.mark.usefixtures("bare_computer")
def test_free_memory_and_disk_are_shown_beside_what_machines_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "free_memory_bytes", lambda: 7 * GIB)
    monkeypatch.setattr(doctor, "max_parallel_machines", lambda: 3)
    notes = _notes("guest")
    assert "memory: 7.0 GiB free; a machine takes up to" in notes
    assert "up to 3 at once" in notes
    assert "a machine's media take up to" in notes
    assert "all of the lab takes up to" in _notes("container")


def test_too_little_memory_is_a_missing_requirement_of_guests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(capacity, "free_memory_bytes", lambda: GIB // 2)
    missing = [error.what for error in guest.requirements(load_topology("fsdax"))]
    assert [what for what in missing if "of free memory for fsdax: 0.5 GiB are free" in what]


def test_too_little_disk_for_media_is_a_missing_requirement_of_guests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: _Usage(free=1 << 20))
    missing = guest.requirements(load_topology("fsdax"))
    assert [error for error in missing if "for the media of fsdax" in error.what]
    assert "set TMPDIR" in missing[-1].remedy


def test_too_little_shared_memory_is_a_missing_requirement_of_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: _Usage(free=1 << 20))
    [error] = process.requirements(load_topology("fsdax"))
    assert "/dev/shm" in error.what
    assert process.requirements(load_topology("dram")) == []


def test_free_memory_respects_the_control_group_s_limit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "max").write_text(f"{GIB}\n")
    (tmp_path / "current").write_text(f"{GIB // 4}\n")
    monkeypatch.setattr(capacity, "_MEMORY_LIMIT", tmp_path / "max")
    monkeypatch.setattr(capacity, "_MEMORY_USED", tmp_path / "current")
    assert capacity.free_memory_bytes() == 3 * GIB // 4
    (tmp_path / "max").write_text("max\n")
    assert capacity.free_memory_bytes() > 3 * GIB // 4


@dataclass
class _Usage:
    free: int


def test_the_table_has_a_row_per_kind_and_the_commands() -> None:
    missing = MissingRequirementError("QEMU", "apt-get install qemu-system-x86")
    console = Console(width=120, force_terminal=False)
    with console.capture() as capture:
        console.print(diagnosis_table([Diagnosis("process", ()), Diagnosis("guest", (missing,))]))
    text = capture.get()
    assert "process" in text
    assert "missing: QEMU" in text
    assert "apt-get install qemu-system-x86" in text
