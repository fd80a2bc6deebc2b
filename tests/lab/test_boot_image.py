"""The files that guests boot from: kernel, modules and initramfs, and the cache that keeps them."""

from __future__ import annotations

import gzip
import lzma
import os
import shutil
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pmemlab.errors import LabError, MissingRequirementError
from pmemlab.machines.guest import kernel as kernel_module
from pmemlab.machines.guest.cache import build_once, cache_folder
from pmemlab.machines.guest.initramfs import write_cpio, write_initramfs
from pmemlab.machines.guest.kernel import cached_kernel, get_kernel, kernel_source

_RELEASE = "6.1.0-9-amd64"
_KERNEL = b"\x7fELF" + b"a kernel" * 1000


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("PMEMLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PMEMLAB_KERNEL", raising=False)
    return tmp_path / "cache"


def _module(depends: str, softdep: str = "") -> bytes:
    soft = f"softdep={softdep}\0" if softdep else ""
    return f"\x7fELF\0license=GPL\0{soft}depends={depends}\0name=x\0".encode()


def _bzimage(packed: bytes) -> bytes:
    """Returns an image in the boot protocol's layout: a header that locates the packed kernel."""
    offset, setup_sectors = 700, 3
    image = bytearray((setup_sectors + 1) * 512 + offset)
    image[0x1F1] = setup_sectors
    image[0x202:0x206] = b"HdrS"
    image[0x248:0x250] = struct.pack("<II", offset, len(packed) + 4)
    return bytes(image) + packed + struct.pack("<I", len(_KERNEL)) + b"what follows"


def _zstd(content: bytes) -> bytes:
    return subprocess.run(["zstd", "-c"], input=content, check=True, capture_output=True).stdout


def _repack(root: Path, suffix: str, pack: Callable[[bytes], bytes]) -> None:
    """Packs every module, as some distributions do."""
    for path in [*root.rglob("*.ko")]:
        path.with_name(path.name + suffix).write_bytes(pack(path.read_bytes()))
        path.unlink()


@pytest.fixture(autouse=True)
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A root folder with a kernel in its /boot and the modules that guests load."""
    root = tmp_path / "root"
    tree = root / "lib/modules" / _RELEASE
    (root / "boot").mkdir(parents=True)
    (root / "boot" / f"vmlinuz-{_RELEASE}").write_bytes(_bzimage(lzma.compress(_KERNEL)))
    modules = [*kernel_module._MODULES, *kernel_module._MORE_MODULES]
    depends = dict.fromkeys([*modules, "crc32c_generic", "crc32c_intel"], "")
    depends |= {"9p": "9pnet,netfs", "9pnet": "", "netfs": "", "ext4": "jbd2,libcrc", "jbd2": ""}
    depends |= {"nd_pmem": "libnvdimm", "virtio_pci": "virtio-ring", "virtio_ring": "built_in"}
    for name, others in depends.items():
        path = tree / "kernel" / "drivers" / f"{name.replace('_', '-')}.ko"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_module(others, "pre: crc32c" if name == "ext4" else ""))
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


def test_modules_that_only_some_machines_need_are_cached_but_not_loaded_by_all() -> None:
    kernel = get_kernel()
    kept = {path.stem for path in kernel.folder.rglob("*.ko")}
    loaded = {path.stem for path in kernel.modules}
    assert kept - loaded == {*kernel_module._MORE_MODULES}


def test_a_kernel_may_lack_modules_that_only_some_machines_need(root: Path) -> None:
    (root / f"lib/modules/{_RELEASE}/kernel/drivers/cxl-acpi.ko").unlink()
    assert "cxl_acpi" not in {path.stem for path in get_kernel().folder.rglob("*.ko")}


@pytest.mark.parametrize(
    ("suffix", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress), (".zst", _zstd)]
)
def test_packed_modules_are_unpacked(
    root: Path, suffix: str, pack: Callable[[bytes], bytes]
) -> None:
    if suffix == ".zst" and not shutil.which("zstd"):
        pytest.skip("needs zstd")
    plain = [module.name for module in get_kernel().modules]
    shutil.rmtree(cache_folder())
    _repack(root, suffix, pack)
    kernel = get_kernel()
    assert [module.name for module in kernel.modules] == plain
    assert all(module.read_bytes().startswith(b"\x7fELF") for module in kernel.modules)


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="this Python unpacks it by itself")
def test_a_missing_unpacker_is_an_error_that_names_its_package(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _repack(root, ".zst", lambda content: content)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MissingRequirementError, match="apt-get install zstd"):
        get_kernel()


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_a_module_that_cannot_be_unpacked_is_named(root: Path, suffix: str) -> None:
    if suffix == ".zst" and not shutil.which("zstd"):
        pytest.skip("needs zstd")
    _repack(root, suffix, lambda content: content)
    with pytest.raises(LabError, match=r"kernel module .*\.ko.* can't be unpacked"):
        get_kernel()


def test_a_kernel_without_crc32c_intel_will_do(root: Path) -> None:
    (root / f"lib/modules/{_RELEASE}/kernel/drivers/crc32c-intel.ko").unlink()
    names = [module.stem for module in get_kernel().modules]
    assert "crc32c_intel" not in names
    assert names.index("crc32c_generic") < names.index("ext4")


@pytest.mark.parametrize("softdep", ["pre: crc32c", "pre: crypto-crc32c"])
def test_an_ext4_with_a_soft_dependency_on_crc32c_needs_that_module(
    root: Path, softdep: str
) -> None:
    tree = root / f"lib/modules/{_RELEASE}/kernel/drivers"
    (tree / "ext4.ko").write_bytes(_module("", softdep))
    (tree / "crc32c-generic.ko").unlink()
    with pytest.raises(LabError, match="lacks the module crc32c_generic, which ext4 needs"):
        _get_kernel_without_apt()
    (tree / "crc32c-cryptoapi.ko").write_bytes(_module(""))
    assert "crc32c_cryptoapi" in [module.stem for module in get_kernel().modules]


def test_an_ext4_without_a_soft_dependency_needs_no_crc32c_module(root: Path) -> None:
    tree = root / f"lib/modules/{_RELEASE}/kernel/drivers"
    (tree / "ext4.ko").write_bytes(_module(""))
    for name in ("crc32c-generic", "crc32c-intel"):
        (tree / f"{name}.ko").unlink()
    assert not [module for module in get_kernel().modules if "crc32c" in module.stem]


@pytest.mark.parametrize(
    ("module", "message"), [("kmem", "lacks the module kmem"), ("netfs", "netfs, which 9p needs")]
)
def test_a_module_that_is_missing_is_named(root: Path, module: str, message: str) -> None:
    (root / f"lib/modules/{_RELEASE}/kernel/drivers/{module}.ko").unlink()
    with pytest.raises(MissingRequirementError, match=f"{_RELEASE} .*{message}"):
        _get_kernel_without_apt()


def _get_kernel_without_apt() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", "")
        get_kernel()


def test_a_package_s_kernel_that_lacks_a_module_is_an_error_that_names_both(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / f"lib/modules/{_RELEASE}/kernel/drivers/nfit.ko").unlink()
    monkeypatch.setattr(kernel_module, "_package_names", lambda _: ["linux-image-6.1"])
    monkeypatch.setattr(kernel_module, "_fetch_packages", lambda *_: root)
    with pytest.raises(LabError, match=r"linux-image-6\.1: .*lacks the module nfit"):
        get_kernel()


def test_a_user_s_own_kernel_is_taken_from_its_folder(
    root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    boot = get_kernel()
    own = _copied(root, tmp_path / "own", "6.12.1")
    monkeypatch.setenv("PMEMLAB_KERNEL", str(own))
    assert kernel_source().description == f"kernel 6.12.1 from {own}/boot"
    assert get_kernel().release == "6.12.1"
    monkeypatch.delenv("PMEMLAB_KERNEL")
    assert get_kernel() == boot


def _copied(root: Path, folder: Path, release: str) -> Path:
    """Copies the root to the folder, renames its kernel's release, and returns the folder."""
    shutil.copytree(root, folder)
    for path in (folder / "boot", folder / "lib/modules"):
        for found in path.iterdir():
            found.rename(found.with_name(found.name.replace(_RELEASE, release)))
    return folder


def test_a_user_s_own_kernel_leaves_the_cache_once_its_folder_is_gone(
    root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    boot = get_kernel()
    kept = []
    for number in (1, 2, 3):
        own = _copied(root, tmp_path / f"own{number}", f"6.12.{number}")
        monkeypatch.setenv("PMEMLAB_KERNEL", str(own))
        kept.append(get_kernel().folder)
        if number == 1:
            shutil.rmtree(own)
    assert [folder.exists() for folder in (*kept, boot.folder)] == [False, True, True, True]


def test_a_user_s_own_folder_without_a_kernel_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PMEMLAB_KERNEL", str(tmp_path))
    for find in (get_kernel, kernel_source):
        with pytest.raises(MissingRequirementError, match=f"PMEMLAB_KERNEL={tmp_path}"):
            find()


def test_a_kernel_is_fetched_once_and_then_read_from_the_cache(root: Path) -> None:
    assert kernel_source().description == f"kernel {_RELEASE} from {root}/boot"
    assert kernel_source().release == _RELEASE
    kernel = get_kernel()
    shutil.rmtree(root)
    assert kernel_source().release == _RELEASE
    assert cached_kernel() == get_kernel() == kernel
    assert str(cache_folder()) in kernel_source().description


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [_cut, _flip, Path.unlink])
@pytest.mark.parametrize(
    "name", ["vmlinux", f"lib/modules/{_RELEASE}/kernel/ext4.ko", "load-order", "checksums"]
)
def test_a_damaged_kernel_in_the_cache_is_rebuilt(
    name: str, damage: Callable[[Path], None]
) -> None:
    entry = get_kernel().folder
    whole = (entry / name).read_bytes()
    damage(entry / name)
    assert get_kernel().folder == entry
    assert (entry / name).read_bytes() == whole
    assert {path.name for path in cache_folder().iterdir()} == {entry.name, "lock"}


def test_a_damaged_kernel_that_cannot_be_rebuilt_is_named(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = get_kernel().folder
    _cut(entry / "vmlinux")
    shutil.rmtree(root / "boot")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(LabError, match=rf"kernel in {entry} is damaged.*no apt is here"):
        get_kernel()
    assert (entry / "vmlinux").exists()


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


@pytest.mark.skipif(not shutil.which("zstd"), reason="needs zstd")
def test_an_image_that_zstd_packed_is_unpacked_too(root: Path) -> None:
    (root / "boot" / f"vmlinuz-{_RELEASE}").write_bytes(_bzimage(_zstd(_KERNEL)))
    assert get_kernel().image.read_bytes() == _KERNEL


@pytest.mark.parametrize(
    "image",
    [
        b"MZ another format",
        _bzimage(b"\x1f\x8b another program's"),
        _bzimage(b"\xfd7zXZ\x00 no archive"),
        _bzimage(b"\x28\xb5\x2f\xfd no archive"),
        _bzimage(lzma.compress(b"no kernel")),
    ],
)
def test_an_image_that_can_t_be_unpacked_is_left_to_qemu(root: Path, image: bytes) -> None:
    (root / "boot" / f"vmlinuz-{_RELEASE}").write_bytes(image)
    assert get_kernel().image.read_bytes() == image


def test_an_image_beside_its_modules_is_found(root: Path) -> None:
    tree = root / "usr/lib/modules" / _RELEASE
    tree.parent.mkdir(parents=True)
    (root / "lib/modules" / _RELEASE).rename(tree)
    (root / f"boot/vmlinuz-{_RELEASE}").rename(tree / "vmlinuz")
    assert kernel_source().description == f"kernel {_RELEASE} from {tree}"
    assert get_kernel().image.read_bytes() == _KERNEL


def test_a_release_without_modules_is_an_error_that_names_it(root: Path) -> None:
    shutil.rmtree(root / "lib/modules" / _RELEASE)
    with pytest.raises(MissingRequirementError, match=f"{_RELEASE} has no modules in"):
        _get_kernel_without_apt()


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
        write_initramfs(tmp_path / "initramfs", get_kernel())


def test_an_initramfs_holds_busybox_the_modules_and_the_added_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "busybox").write_bytes(b"\x7fELF static")
    (tmp_path / "busybox").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    kernel = get_kernel()
    added = {"shares": (stat.S_IFREG | 0o644, b"share0 /usr\n")}
    write_initramfs(tmp_path / "initramfs", kernel, added, init=b"#!/bin/sh\n")
    archive = (tmp_path / "initramfs").read_bytes()
    for content in (b"\x7fELF static", b"share0 /usr\n", b"#!/bin/sh\n"):
        assert content in archive
    for module in kernel.modules:
        assert f"/{module.relative_to(kernel.folder)}\n".encode() in archive
        assert module.read_bytes() in archive


def test_concurrent_builders_build_once(cache: Path) -> None:
    meet = threading.Barrier(3)

    def build(_: int) -> None:
        meet.wait()
        with build_once() as scratch:
            entry = cache / "entry"
            if not entry.exists():
                (scratch / "part").write_text("built")
                time.sleep(0.2)
                (scratch / "part").rename(entry)
                with (cache / "builders").open("a") as builders:
                    builders.write("x")

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(build, range(3)))
    assert (cache / "builders").read_text() == "x"
    assert not list(cache.glob("scratch-*"))


def test_a_killed_builder_s_scratch_folder_is_removed(cache: Path) -> None:
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


def test_a_package_s_release_is_known_before_it_is_fetched(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(root / "boot")
    monkeypatch.setattr(
        kernel_module, "_package_names", lambda _: ["linux-image-6.12.95+deb12-amd64"]
    )
    assert kernel_source().release == "6.12.95+deb12-amd64"
