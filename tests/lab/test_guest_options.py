"""The options by which a user changes a guest at the shell."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import fake_qemu
import pytest

from pmemlab.cli import main
from pmemlab.errors import LabError
from pmemlab.machines.guest import kernel_choice
from pmemlab.machines.guest.kernel import Kernel
from pmemlab.machines.guest.kernel_choice import kernel_folder
from pmemlab.machines.guest.options import GuestOptions, parse_qemu_arguments
from pmemlab.topology import load_topology, topology_names


@pytest.fixture(autouse=True)
def _separate_cache_and_restored_signal_handler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[None]:
    monkeypatch.setenv("PMEMLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PMEMLAB_KERNEL", "")
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture
def topology(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The file of a topology whose guests run on the fake QEMU."""
    fake_qemu.install(monkeypatch, tmp_path)
    monkeypatch.setattr("pmemlab.machines.guest.qemu_script.choose_accelerator", lambda *_: "tcg")
    kernel = Kernel("6.1.0-fake", tmp_path / "vmlinux", tmp_path)
    monkeypatch.setattr("pmemlab.machines.guest.qemu_script.get_kernel", lambda: kernel)
    path = tmp_path / "fake.yaml"
    path.write_text(
        "name: fake\nsummary: this computer\nbacking_files: {dimm: 1M}\n"
        "qemu: ['-object memory-backend-file,mem-path={dimm}']\n"
        f"provision: ['true']\nproof: {{kernel: '{os.uname().release}'}}\n"
    )
    return str(path)


def test_a_dry_run_prints_valid_shell_commands(
    topology: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "my results, all"
    results.mkdir()
    argv = ["machine", "exec", topology, "--dry-run", "--cpus", "3", "--share", str(results)]
    assert main([*argv, "--qemu-arguments", "-device 'a b'"]) == 0
    script = capfd.readouterr().out
    subprocess.run(["sh", "-n"], input=script, text=True, check=True)
    words = shlex.split(script, comments=True)
    assert words[words.index("-smp") + 1] == "3"
    share = f"local,id=results,path={tmp_path}/my results,, all,security_model=mapped-"
    assert share in " ".join(words)
    assert "a b" in words
    assert words[words.index("truncate") + 1 :][:2] == ["--size", str(1 << 20)]
    assert "# in the guest: true" in script
    assert not re.search(r"fd=\d", script)  # a user's shell has no such descriptor
    (made,) = (tmp_path / "cache/by-hand/fake").iterdir()
    assert words[words.index("-initrd") + 1] == str(made)


def test_options_reach_qemu(topology: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    arguments_file = tmp_path / "told"
    program = fake_qemu.program_that_logs_its_arguments(arguments_file)
    fake_qemu.install(monkeypatch, tmp_path, program)
    argv = [
        "machine",
        "exec",
        topology,
        "--cpus",
        "2",
        "--qemu-arguments",
        "-device virtio-rng-pci",
    ]
    assert main([*argv, "--", "true"]) == 0
    line = arguments_file.read_text().splitlines()
    assert line[line.index("-smp") + 1] == "2"
    assert line[-2:] == ["-device", "virtio-rng-pci"]


def test_a_guest_with_more_cpus_must_prove_them() -> None:
    for name in {*topology_names()} - {"two-sockets"}:
        topology = GuestOptions(cpus=3).applied_to(load_topology(name))
        assert topology.cpus == 3
        assert topology.proof == {**load_topology(name).proof, "cpus": [0, 1, 2]}


def test_the_cpus_of_a_topology_with_sockets_cannot_be_changed() -> None:
    two_sockets = load_topology("two-sockets")
    assert GuestOptions(cpus=2).applied_to(two_sockets) == two_sockets
    with pytest.raises(LabError, match=r"--cpus 3: two-sockets has 2 CPUs.*of your own"):
        GuestOptions(cpus=3).applied_to(two_sockets)


@pytest.fixture
def wrong_topology(topology: str) -> str:
    """The file of a topology that demands a disk, which the fake guest doesn't have."""
    path = Path(topology).with_name("wrong.yaml")
    text = Path(topology).read_text().replace("name: fake", "name: wrong")
    path.write_text(text.replace("proof: {", "proof: {disks: [of another computer], "))
    return str(path)


def test_facts_that_qemu_arguments_changed_are_named_and_left_unproved(
    wrong_topology: str, capfd: pytest.CaptureFixture[str]
) -> None:
    argv = ["machine", "exec", wrong_topology, "--qemu-arguments", "-device virtio-rng-pci"]
    assert main([*argv, "--", "echo", "it runs"]) == 0
    out, err = capfd.readouterr()
    assert out == "it runs\n"
    assert "wrong: not proved, since --qemu-arguments may have changed it: disks" in err


def test_without_qemu_arguments_a_fact_that_differs_refuses_the_guest(
    wrong_topology: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["machine", "exec", wrong_topology, "--cpus", "1", "--", "echo", "it runs"]) == 125
    out, err = capfd.readouterr()
    assert out == ""
    assert "machine wrong is not what it says" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--cpus", "0"], "--cpus 0: must be 1 or more"),
        (["--share", "/no/such"], "--share /no/such: there is no such folder; make it first"),
        (["--qemu-arguments", "-a 'b"], '--qemu-arguments "-a \'b": No closing quotation'),
        (
            ["--kernel", "0.0-none"],
            "--kernel 0.0-none: there is no /boot/vmlinuz-0.0-none; in /boot",
        ),
    ],
)
def test_a_wrong_option_is_told_before_anything_starts(
    topology: str, options: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["machine", "exec", topology, *options, "--", "true"]) == 125
    assert message in capfd.readouterr().err


def test_a_running_guest_cannot_be_changed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    argv = ["machine", "exec", "--state-dir", str(tmp_path), "--cpus", "2", "--", "true"]
    assert main(argv) == 125
    assert "its guest runs already" in capfd.readouterr().err


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_folder_that_can_t_be_written_is_refused() -> None:
    with pytest.raises(LabError, match="you may not write there"):
        GuestOptions(results=Path("/usr")).results_share()


def test_the_shell_command_without_a_terminal_starts_nothing(
    topology: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["machine", "shell", topology]) == 2
    assert "shell: needs a terminal" in capfd.readouterr().err
    assert not list(tmp_path.glob("pmemlab-machine-*"))


def test_qemu_arguments_are_split_as_a_shell_would() -> None:
    assert parse_qemu_arguments("-device 'a b' -s") == ("-device", "a b", "-s")


def _kernel_in(root: Path, version: str, tree: str = "lib/modules") -> Path:
    image = root / "boot" / f"vmlinuz-{version}"
    image.parent.mkdir(parents=True, exist_ok=True)
    image.write_bytes(b"kernel")
    (root / tree / version).mkdir(parents=True)
    return image


def test_a_kernel_of_this_computer_is_chosen_by_its_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    for version in ("6.1.0-9", "6.12.0-1"):
        _kernel_in(root, version)
    monkeypatch.setattr(kernel_choice, "_ROOT", root)
    folder = kernel_folder("6.1.0-9")
    assert [path.name for path in (folder / "boot").iterdir()] == ["vmlinuz-6.1.0-9"]
    assert (folder / "lib/modules/6.1.0-9").is_dir()
    with pytest.raises(LabError, match=r"there are the versions 6\.1\.0-9, 6\.12\.0-1"):
        kernel_folder("5.10")


@pytest.mark.parametrize("tree", ["lib/modules", "usr/lib/modules"])
def test_a_kernel_is_chosen_by_its_file(tmp_path: Path, tree: str) -> None:
    image = _kernel_in(tmp_path / "unpacked", "6.12.0-1", tree)
    folder = kernel_folder(str(image))
    assert (folder / "boot/vmlinuz-6.12.0-1").read_bytes() == b"kernel"
    assert (folder / "lib/modules/6.12.0-1").is_dir()
    assert kernel_folder(str(image)) == folder


def test_a_replaced_image_of_the_same_name_gets_a_new_folder(tmp_path: Path) -> None:
    image = _kernel_in(tmp_path / "unpacked", "6.12.0-1")
    first = kernel_folder(str(image))
    os.utime(image, (1, 1))
    assert kernel_folder(str(image)) != first


def test_a_folder_of_kernels_is_used_unchanged(tmp_path: Path) -> None:
    assert kernel_folder(str(tmp_path)) == tmp_path


def test_an_image_without_modules_is_refused(tmp_path: Path) -> None:
    image = _kernel_in(tmp_path / "unpacked", "6.12.0-1")
    (tmp_path / "unpacked/lib/modules/6.12.0-1").rmdir()
    with pytest.raises(LabError, match="has no modules"):
        kernel_folder(str(image))


def test_an_image_whose_name_has_no_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bzImage").touch()
    with pytest.raises(LabError, match="must be called vmlinuz-VERSION"):
        kernel_folder(str(tmp_path / "bzImage"))
