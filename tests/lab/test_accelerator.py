"""The choice of KVM or TCG: only a boot within the time limit proves KVM; the answer is cached."""

from __future__ import annotations

import json
import time
from pathlib import Path

import fake_qemu
import pytest

from pmemlab.machines.guest import accelerator
from pmemlab.machines.guest.accelerator import cached_answer, choose_accelerator
from pmemlab.machines.guest.kernel import Kernel
from pmemlab.machines.protocol import Accelerator


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Kernel:
    """A computer with a /dev/kvm."""
    device = tmp_path / "kvm"
    device.touch()
    monkeypatch.setattr(accelerator, "_DEVICE", device)
    monkeypatch.setattr(accelerator, "_BOOT_LIMIT_S", 1.0)
    monkeypatch.setattr(accelerator, "write_initramfs", lambda *_, **__: None)
    monkeypatch.setenv("PMEMLAB_CACHE", str(tmp_path / "cache"))
    return Kernel("6.1.0", tmp_path / "vmlinux", tmp_path)


def _qemu(folder: Path, script: str) -> str:
    return fake_qemu.qemu_of(folder, f"echo x >> {folder}/boots\n{script}")


def test_a_guest_that_boots_means_kvm(kernel: Kernel, tmp_path: Path) -> None:
    qemu = _qemu(tmp_path, "echo booting; echo 'pmemlab: a guest has booted'")
    assert choose_accelerator(kernel, qemu) == "kvm"


def test_a_guest_that_hangs_means_tcg_within_the_limit(kernel: Kernel, tmp_path: Path) -> None:
    started = time.monotonic()
    assert choose_accelerator(kernel, _qemu(tmp_path, "echo booting; exec sleep 60")) == "tcg"
    assert time.monotonic() - started < 30


def test_a_qemu_that_refuses_kvm_means_tcg(kernel: Kernel, tmp_path: Path) -> None:
    assert choose_accelerator(kernel, _qemu(tmp_path, "exit 1")) == "tcg"


def test_without_dev_kvm_nothing_is_booted_and_tcg_is_chosen(
    kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accelerator, "_DEVICE", tmp_path / "none")
    assert choose_accelerator(kernel, _qemu(tmp_path, "exit 1")) == "tcg"
    assert not (tmp_path / "boots").exists()


def test_the_answer_is_remembered_for_each_kernel_and_qemu(kernel: Kernel, tmp_path: Path) -> None:
    qemu = _qemu(tmp_path, "exit 1")
    newer = Kernel("6.2.0", kernel.image, kernel.folder)
    for _ in range(3):
        choose_accelerator(kernel, qemu)
        choose_accelerator(newer, qemu)
    assert (tmp_path / "boots").read_text() == "x\nx\n"


def test_the_answer_is_forgotten_when_the_host_boots_again(kernel: Kernel, tmp_path: Path) -> None:
    qemu = _qemu(tmp_path, "exit 1")
    choose_accelerator(kernel, qemu)
    memory = tmp_path / "cache" / "accelerator.json"
    document = json.loads(memory.read_text())
    memory.write_text(json.dumps({**document, "boot": "another"}))
    choose_accelerator(kernel, qemu)
    assert (tmp_path / "boots").read_text() == "x\nx\n"


@pytest.mark.parametrize(
    "content",
    ["{", "[]", '{"boot": 1}', '{"boot": "BOOT"}', '{"boot": "BOOT", "answers": 2}'],
)
def test_a_damaged_answer_file_is_ignored_and_kvm_is_tried_again(
    kernel: Kernel, tmp_path: Path, content: str
) -> None:
    qemu = _qemu(tmp_path, "echo 'pmemlab: a guest has booted'")
    choose_accelerator(kernel, qemu)
    memory = tmp_path / "cache" / "accelerator.json"
    memory.write_text(content.replace("BOOT", json.loads(memory.read_text())["boot"]))
    assert choose_accelerator(kernel, qemu) == "kvm"
    assert (tmp_path / "boots").read_text() == "x\nx\n"


@pytest.mark.usefixtures("kernel")
def test_a_trial_that_raises_is_not_remembered() -> None:
    def fail() -> Accelerator:
        raise OSError

    with pytest.raises(OSError):  # noqa: PT011
        cached_answer("in containers", fail)
    assert cached_answer("in containers", lambda: "kvm") == "kvm"
    assert cached_answer("in containers", fail) == "kvm"
