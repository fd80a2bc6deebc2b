"""Topologies that require a newer QEMU or kernel than this computer's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import fake_qemu
import pytest

from pmemlab.errors import LabError, MissingRequirementError
from pmemlab.machines.choice import MachineChooser
from pmemlab.machines.guest.kernel import KernelSource
from pmemlab.machines.guest.machine import open_guest_machine
from pmemlab.machines.guest.requirements import qemu_version, unmet_requirements
from pmemlab.topology import Requirements, load_topology

_DEMANDING = replace(fake_qemu.THIS_COMPUTER, requires=Requirements(qemu="8.2", kernel="6.5"))


def _qemu(folder: Path, output: str, status: int = 0) -> str:
    return fake_qemu.qemu_of(folder, f"echo '{output}'\nexit {status}")


@pytest.mark.parametrize("version", ["8.2", "8.2.0", "8.10.1", "10.0.2 (Debian 1:10.0.2+ds-2)"])
@pytest.mark.parametrize("release", ["6.5", "6.5.0-9-amd64", "6.12.95+deb12-amd64", "7.3.4"])
def test_new_enough_versions_meet_the_requirements(
    tmp_path: Path, version: str, release: str
) -> None:
    assert (
        unmet_requirements(_DEMANDING, _qemu(tmp_path, f"emulator version {version}"), release)
        == []
    )


@pytest.mark.parametrize("version", ["7.2.22", "8.1.9"])
def test_a_qemu_that_is_too_old_is_named_with_what_to_do(tmp_path: Path, version: str) -> None:
    missing = unmet_requirements(_DEMANDING, _qemu(tmp_path, f"emulator version {version}"), "6.12")
    assert [f"machine fake wants QEMU 8.2 or later; the one here is {version}"] == [
        error.what for error in missing
    ]
    assert "make backports" in missing[0].remedy
    assert "PMEMLAB_QEMU" in missing[0].remedy


@pytest.mark.parametrize("release", ["6.4.99", "6.1.0-56-amd64", "5.15.0-1-generic"])
def test_a_kernel_that_is_too_old_is_named_with_what_to_do(tmp_path: Path, release: str) -> None:
    missing = unmet_requirements(_DEMANDING, _qemu(tmp_path, "emulator version 9.0"), release)
    assert [f"machine fake wants a kernel 6.5 or later; the one here is {release}"] == [
        error.what for error in missing
    ]
    assert "PMEMLAB_KERNEL" in missing[0].remedy


def test_a_topology_without_requirements_does_not_run_qemu() -> None:
    assert unmet_requirements(fake_qemu.THIS_COMPUTER, "/no/such/qemu", "2.6") == []


@pytest.mark.parametrize(("output", "status"), [("no words", 0), ("emulator version 9.0", 1)])
def test_a_qemu_that_does_not_say_its_version_is_an_error(
    tmp_path: Path, output: str, status: int
) -> None:
    with pytest.raises(LabError, match=f"--version: {output}"):
        qemu_version(_qemu(tmp_path, output, status))


def test_a_guest_whose_requirements_are_unmet_is_not_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_qemu.install(monkeypatch, tmp_path, "#!/bin/sh\ntest $1 = --version && echo version 7.2\n")
    with pytest.raises(MissingRequirementError, match=r"QEMU 8\.2 or later; the one here is 7\.2"):
        open_guest_machine(_DEMANDING)


def fake_computer(monkeypatch: pytest.MonkeyPatch, qemu: str) -> None:
    """Emulates a computer with every requirement of guests, this QEMU and a recent kernel."""
    for check in ("find_setpriv", "find_busybox"):
        monkeypatch.setattr(f"pmemlab.machines.guest.machine.{check}", lambda: "there")
    monkeypatch.setattr("pmemlab.machines.guest.machine._PROGRAMS", {})
    monkeypatch.setattr("pmemlab.machines.guest.machine.missing_memory", lambda *_: [])
    monkeypatch.setattr("pmemlab.machines.guest.machine.find_qemu", lambda: qemu)
    source = KernelSource("6.12.95", "there")
    monkeypatch.setattr("pmemlab.machines.guest.machine.kernel_source", lambda: source)


def test_a_machine_that_is_too_new_for_this_computer_s_guests_runs_as_a_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_computer(monkeypatch, _qemu(tmp_path, "version 7.2"))
    choice = MachineChooser("auto", tmp_path).choose(load_topology("cxl-ram"))
    assert choice.kind == "process"
    assert "no guest: machine cxl-ram wants QEMU 10.0 or later" in choice.why


def test_a_machine_that_requires_a_newer_qemu_is_a_guest_if_it_is_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_computer(monkeypatch, _qemu(tmp_path, "version 10.0.2"))
    assert MachineChooser("auto", tmp_path).choose(load_topology("cxl-pmem")).kind == "guest"
