"""QEMU's arguments: special characters are quoted, and the sandbox is on if QEMU has one."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import fake_qemu
import pytest

from pmemlab.machines.guest.kernel import Kernel
from pmemlab.machines.guest.qemu import command_line
from pmemlab.machines.guest.sandbox import sandbox_arguments
from pmemlab.machines.guest.shares import Share
from pmemlab.topology import Topology

TOPOLOGY = replace(
    fake_qemu.THIS_COMPUTER,
    backing_files={"dimm": 4096},
    qemu=("-object memory-backend-file,id=m,mem-path={dimm},size=4096 -device nvdimm,memdev=m",),
)


@pytest.fixture(autouse=True)
def _fake_qemu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_qemu.install(monkeypatch, tmp_path)


def _line(state: Path, topology: Topology = TOPOLOGY, shares: tuple[Share, ...] = ()) -> list[str]:
    kernel = Kernel("6.1.0", state / "vmlinux", state)
    initramfs = state / "initramfs"
    return command_line(topology, kernel, initramfs, "tcg", state, ["agent"], "fd=3", shares=shares)


def _values(line: list[str], option: str) -> list[str]:
    return [value for name, value in pairwise(line) if name == option]


def test_a_temporary_folder_with_a_space_and_a_comma_stays_one_value() -> None:
    line = _line(Path("/tmp/a folder, mine"))
    [backend] = _values(line, "-object")
    assert "mem-path=/tmp/a folder,, mine/dimm.img,size=4096" in backend
    assert "file,id=console,path=/tmp/a folder,, mine/console.log" in _values(line, "-chardev")
    assert _values(line, "-kernel") == ["/tmp/a folder, mine/vmlinux"]


@pytest.mark.parametrize("name", ["a,debug-threads=on", 'q"x', "mine panic=0"])
def test_a_machine_s_name_cannot_add_options_of_qemu_or_the_kernel(
    tmp_path: Path, name: str
) -> None:
    line = _line(tmp_path, replace(TOPOLOGY, name=name))
    (given,) = _values(line, "-name")
    assert not set(given) & set(', "')
    (words,) = _values(line, "-append")
    assert f"hostname={given.removeprefix('pmemlab-')} rdinit=" in words


def test_a_guest_s_shares_are_read_only(tmp_path: Path) -> None:
    shares = (Share("share0", Path("/usr")), Share("share1", Path("/opt/a, b")))
    devices = _values(_line(tmp_path, shares=shares), "-fsdev")
    assert [device.split(",security")[0] for device in devices] == [
        "local,id=share0,path=/usr",
        "local,id=share1,path=/opt/a,, b",
    ]
    assert all("readonly=on" in device for device in devices)


def test_an_unpacked_qemu_uses_its_own_firmware(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bin", "share/qemu", "share/seabios"):
        (tmp_path / "usr" / name).mkdir(parents=True)
    program = fake_qemu.qemu_of(tmp_path / "usr/bin", "exit 0")
    monkeypatch.setenv("PMEMLAB_QEMU", program)
    line = _line(tmp_path)
    assert line[0] == program
    assert _values(line, "-L") == [
        str(tmp_path / "usr/share" / name) for name in ("qemu", "seabios")
    ]


def test_the_sandbox_is_on_if_qemu_starts_in_it(tmp_path: Path) -> None:
    option, value = sandbox_arguments(fake_qemu.qemu_of(tmp_path, "exit 0"))
    assert option == "-sandbox"
    assert "spawn=deny" in value


def test_a_qemu_without_a_sandbox_is_started_without_the_option(tmp_path: Path) -> None:
    assert (
        sandbox_arguments(fake_qemu.qemu_of(tmp_path, "echo -sandbox: invalid option >&2; exit 1"))
        == ()
    )
