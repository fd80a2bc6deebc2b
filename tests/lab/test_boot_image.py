"""What guests boot from: the kernel's modules, the initramfs, the cache that keeps them."""

from __future__ import annotations

import lzma
import multiprocessing
import os
import shutil
import stat
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pmemlab.errors import LabError, MissingRequirementError
from pmemlab.guest import kernel as kernel_module
from pmemlab.guest.cache import build_once, cache_folder
from pmemlab.guest.initramfs import get_initramfs, write_cpio
from pmemlab.guest.kernel import cached_kernel, get_kernel, kernel_source

_RELEASE = "6.1.0-9-amd64"
_KERNEL = b"\x7fELF" + b"a kernel" * 1000


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("PMEMLAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _module(depends: str) -> bytes:
    return b"\x7fELF\x00license=GPL\x00depends=" + depends.encode() + b"\x00name=x\x00"


@pytest.fixture(autouse=True)
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A root folder with a kernel in its /boot, and the modules that guests load."""
    root = tmp_path / "root"
    tree = root / "lib/modules" / _RELEASE
    (root / "boot").mkdir(parents=True)
    image = b"MZ boot stub" + b"\xfd7zXZ\x00 no stream" + lzma.compress(_KERNEL)
    (root / "boot" / f"vmlinuz-{_RELEASE}").write_bytes(image)
    depends = dict.fromkeys(kernel_module._MODULES, "")
    depends |= {"9p": "9pnet,netfs", "9pnet": "", "netfs": "", "ext4": "jbd2,libcrc", "jbd2": ""}
    depends |= {"nd_pmem": "libnvdimm", "virtio_pci": "virtio-ring", "virtio_ring": "built_in"}
    for name, others in depends.items():
        path = tree / "kernel" / "drivers" / f"{name.replace('_', '-')}.ko"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_module(others))
    (tree / "kernel/drivers/jbd2.ko.xz").write_bytes(lzma.compress(_module("")))
    (tree / "kernel/drivers/jbd2.ko").unlink()
    (tree / "modules.builtin").write_text("kernel/lib/libcrc.ko\nkernel/built-in.ko\n")
    monkeypatch.setattr(kernel_module, "_ROOT", root)
    monkeypatch.setattr(kernel_module, "_depmod", lambda *_: None)
    return root


def test_the_kernel_of_boot_is_unpacked_with_the_modules_in_order() -> None:
    kernel = get_kernel()
    assert kernel.release == _RELEASE
    assert kernel.image.read_bytes() == _KERNEL
    names = [module.stem for module in kernel.modules]
    for module, others in {"9p": ["9pnet", "netfs"], "ext4": ["jbd2"]}.items():
        assert all(names.index(other) < names.index(module) for other in others)
    assert names.index("virtio_ring") < names.index("virtio_pci")
    assert "libcrc" not in names
    assert all(module.read_bytes().startswith(b"\x7fELF") for module in kernel.modules)


def test_a_kernel_is_got_once(root: Path) -> None:
    assert kernel_source() == f"kernel {_RELEASE} from /boot"
    kernel = get_kernel()
    shutil.rmtree(root)
    assert cached_kernel() == get_kernel() == kernel
    assert str(cache_folder()) in kernel_source()


def test_a_kernel_that_lacks_a_module_is_passed_over_for_a_package(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in root.rglob("kmem.ko"):
        path.unlink()
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MissingRequirementError, match=r"a Linux kernel.*no apt"):
        get_kernel()


def test_a_kernel_that_apt_does_not_know_names_the_command(
    root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.rmtree(root / "boot")
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("apt-cache", "apt-get"):
        (programs / name).write_text("#!/bin/sh\nexit 100\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    with pytest.raises(MissingRequirementError, match="apt-get update"):
        get_kernel()


def test_an_image_that_python_can_t_unpack_is_left_to_qemu(root: Path) -> None:
    image = root / "boot" / f"vmlinuz-{_RELEASE}"
    image.write_bytes(b"MZ another format")
    assert get_kernel().image.read_bytes() == b"MZ another format"


@pytest.mark.skipif(not shutil.which("busybox"), reason="needs busybox")
def test_an_initramfs_is_a_cpio_archive(tmp_path: Path) -> None:
    folder = tmp_path / "unpacked"
    folder.mkdir()
    entries = {
        "bin": (stat.S_IFDIR | 0o755, b""),
        "bin/program": (stat.S_IFREG | 0o755, b"x" * 1001),
        "empty": (stat.S_IFREG | 0o644, b""),
    }
    write_cpio(tmp_path / "archive", entries)
    with (tmp_path / "archive").open("rb") as archive:
        subprocess.run(["busybox", "cpio", "-id"], stdin=archive, cwd=folder, check=True)
    assert (folder / "bin/program").read_bytes() == b"x" * 1001
    assert (folder / "bin/program").stat().st_mode & 0o777 == 0o755
    assert (folder / "empty").read_bytes() == b""


@given(st.dictionaries(st.text("abc/é", min_size=1), st.binary(max_size=50), max_size=5))
def test_every_block_of_an_archive_is_aligned(contents: dict[str, bytes]) -> None:
    entries = {name: (stat.S_IFREG | 0o644, content) for name, content in contents.items()}
    path = cache_folder() / "archive"
    write_cpio(path, entries)
    archive = path.read_bytes()
    position, found = 0, {}
    while True:
        header = archive[position : position + 110]
        assert header.startswith(b"070701")
        length, name_length = int(header[54:62], 16), int(header[94:102], 16)
        name = archive[position + 110 : position + 110 + name_length - 1].decode()
        start = -(-(position + 110 + name_length) // 4) * 4
        if name == "TRAILER!!!":
            break
        found[name] = archive[start : start + length]
        position = -(-(start + length) // 4) * 4
    assert found == contents


def test_a_dynamic_busybox_is_refused_with_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    busybox = tmp_path / "busybox"
    busybox.write_bytes(b"\x7fELF\x00/lib64/ld-linux-x86-64.so.2\x00")
    busybox.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingRequirementError, match="busybox-static"):
        get_initramfs(get_kernel())


def test_an_initramfs_is_made_once_and_anew_for_another_script(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    busybox = tmp_path / "busybox"
    busybox.write_bytes(b"\x7fELF static")
    busybox.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    kernel = get_kernel()
    first = get_initramfs(kernel)
    written = first.stat().st_mtime_ns
    assert get_initramfs(kernel) == first
    assert first.stat().st_mtime_ns == written
    assert get_initramfs(kernel, init=b"#!/bin/sh\n") != first
    assert get_initramfs(kernel, {"shares": (stat.S_IFREG | 0o644, b"share0 /usr\n")}) != first


def test_an_initramfs_that_was_not_used_for_long_goes_when_another_is_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "busybox").write_bytes(b"\x7fELF static")
    (tmp_path / "busybox").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    kernel = get_kernel()
    unused, used = get_initramfs(kernel, {}), get_initramfs(kernel, {"a": (stat.S_IFREG, b"")})
    for path in (unused, used):
        os.utime(path, (0, 0))
    get_initramfs(kernel, {"a": (stat.S_IFREG, b"")})
    get_initramfs(kernel, {"b": (stat.S_IFREG, b"")})
    assert not unused.exists()
    assert used.exists()


def _build(cache: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PMEMLAB_CACHE", cache)
        with build_once() as scratch:
            entry = Path(cache) / "entry"
            if not entry.exists():
                (scratch / "part").write_text("built")
                time.sleep(0.2)
                (scratch / "part").rename(entry)
                with (Path(cache) / "builders").open("a") as builders:
                    builders.write("x")


def test_builders_that_meet_build_once(cache: Path) -> None:
    context = multiprocessing.get_context("spawn")
    builders = [context.Process(target=_build, args=(str(cache),)) for _ in range(3)]
    for builder in builders:
        builder.start()
    for builder in builders:
        builder.join()
    assert (cache / "builders").read_text() == "x"
    assert not list(cache.glob("scratch-*"))


def test_what_a_killed_builder_left_is_removed(cache: Path) -> None:
    (cache_folder() / "scratch-killed").mkdir()
    with build_once() as scratch:
        assert [path.name for path in cache.glob("scratch-*")] == [scratch.name]


def test_a_cache_that_can_t_be_made_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PMEMLAB_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(LabError, match="PMEMLAB_CACHE"):
        cache_folder()
