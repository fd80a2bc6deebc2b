"""The guests' kernel: found in /boot or fetched from the distribution, never installed.

Only what the guests need is kept: the uncompressed kernel (a guest without KVM takes seconds to
unpack one) and the closure of the modules it loads.
"""

from __future__ import annotations

import lzma
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from pmemlab.errors import LabError, MissingRequirementError
from pmemlab.guest.cache import build_once, cache_folder

__all__ = ["Kernel", "cached_kernel", "get_kernel", "kernel_source"]

# In the order in which they are wanted; their dependencies come before them.
# crc32c_generic: ext4's checksums ask for it by name, and nobody answers in an initramfs.
_MODULES = [
    *("virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay"),
    *("libnvdimm", "nd_e820", "nfit", "nd_pmem", "dax_pmem", "device_dax", "kmem"),
    *("crc32c_generic", "crc32c_intel", "ext4"),
    "nvme",
]
_METAPACKAGES = ("linux-image-amd64", "linux-image-generic")
_ROOT = Path("/")
_XZ_MAGIC = b"\xfd7zXZ\x00"


@dataclass(frozen=True)
class Kernel:
    """release: as `uname -r` says. image: ELF, uncompressed. modules: files in loading order."""

    release: str
    image: Path
    folder: Path

    @property
    def modules(self) -> list[Path]:
        names = (self.folder / "load-order").read_text().split()
        return [self.folder / "lib/modules" / self.release / name for name in names]


def cached_kernel() -> Kernel | None:
    """The kernel that is in the cache already."""
    # A kernel is as good as its modules: another list, another entry.
    digest = sha256(" ".join(_MODULES).encode()).hexdigest()[:8]
    entries = sorted(
        cache_folder().glob(f"kernel-{digest}-*"), key=lambda entry: entry.stat().st_mtime
    )
    if not entries:
        return None
    folder = entries[-1]
    release = folder.name.removeprefix(f"kernel-{digest}-")
    return Kernel(release, folder / "vmlinux", folder)


def kernel_source() -> str:
    """Where `get_kernel` would take the kernel from, in words. Raises as it does."""
    kernel = cached_kernel()
    if kernel:
        return f"kernel {kernel.release} from {cache_folder()}"
    for release in _releases_in(_ROOT):
        return f"kernel {release} from /boot"
    return f"kernel from the package {_package_names()[0]}, fetched at the first start"


def get_kernel() -> Kernel:
    """The guests' kernel: from the cache, else /boot, else the distribution's package.

    Raises `MissingRequirementError` where there is none to be had.
    """
    kernel = cached_kernel()
    if kernel:
        return kernel
    with build_once() as scratch:
        kernel = cached_kernel()  # whoever held the lock before may have built it
        if kernel:
            return kernel
        for release in _releases_in(_ROOT):
            return _publish(_ROOT, release, scratch)
        root = _fetch_packages(_package_names(), scratch)
        for release in _releases_in(root):
            return _publish(root, release, scratch)
    raise LabError(f"the kernel packages {_package_names()} lack a kernel with {_MODULES}")


def _releases_in(root: Path) -> Iterator[str]:
    """Releases, newest first, whose image is readable and whose modules are all there."""
    images = (root / "boot").glob("vmlinuz-*")
    for image in sorted(images, key=lambda path: _numbers(path.name), reverse=True):
        release = image.name.removeprefix("vmlinuz-")
        tree = _module_tree(root, release)
        if not os.access(image, os.R_OK) or not tree.is_dir():
            continue
        try:
            _load_order(tree)
        except LookupError:
            continue
        yield release


def _module_tree(root: Path, release: str) -> Path:
    """Packages that are only unpacked lack the link from /lib to /usr/lib."""
    trees = [root / folder / "lib/modules" / release for folder in (".", "usr")]
    return trees[0] if trees[0].is_dir() else trees[1]


def _numbers(name: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", name)]


def _module_files(tree: Path) -> dict[str, Path]:
    files = (path for path in tree.rglob("*.ko*") if path.suffix in (".ko", ".xz", ".zst"))
    return {path.name.split(".")[0].replace("-", "_"): path for path in files}


def _read_module(path: Path) -> bytes:
    if path.suffix == ".xz":
        return lzma.decompress(path.read_bytes())
    if path.suffix == ".zst":
        if not shutil.which("zstd"):
            raise MissingRequirementError(
                f"zstd, to unpack the kernel module {path}", "apt-get install zstd"
            )
        return subprocess.run(["zstd", "-dc", path], check=True, stdout=subprocess.PIPE).stdout
    return path.read_bytes()


def _load_order(tree: Path) -> dict[str, Path]:
    """Modules and what they depend on, dependencies first. Raises LookupError."""
    builtin = {
        line.rsplit("/", 1)[-1].strip().removesuffix(".ko").replace("-", "_")
        for line in (tree / "modules.builtin").read_text().splitlines()
    }
    files = _module_files(tree)
    order: dict[str, Path] = {}

    def add(name: str) -> None:
        if name in order or name in builtin:
            return
        if name not in files:
            raise LookupError(name)
        # modinfo's own "depends=", which is what depmod would compute
        found = re.search(rb"\x00depends=([^\x00]*)\x00", _read_module(files[name]))
        for dependency in found[1].decode().split(",") if found else []:
            if dependency:
                add(dependency.replace("-", "_"))
        order[name] = files[name]

    for module in _MODULES:
        add(module)
    return order


def _uncompressed(image: bytes) -> bytes | None:
    """The ELF kernel within a bzImage, where it is packed in a way that Python unpacks."""
    start = image.find(_XZ_MAGIC)
    while start >= 0:
        try:
            kernel = lzma.LZMADecompressor(lzma.FORMAT_XZ).decompress(image[start:])
        except lzma.LZMAError:
            kernel = b""
        if kernel.startswith(b"\x7fELF"):
            return kernel
        start = image.find(_XZ_MAGIC, start + 1)
    return None


def _publish(root: Path, release: str, scratch: Path) -> Kernel:
    """Make a cache entry of a kernel and the modules it needs."""
    tree = _module_tree(root, release)
    entry = scratch / "entry"
    target = entry / "lib/modules" / release
    target.mkdir(parents=True)
    names = []
    for name, path in _load_order(tree).items():
        (target / "kernel").mkdir(exist_ok=True)
        (target / "kernel" / f"{name}.ko").write_bytes(_read_module(path))
        names.append(f"kernel/{name}.ko")
    for path in tree.glob("modules.builtin*"):
        if not path.name.endswith(".bin"):
            shutil.copy(path, target)
    (target / "modules.order").write_text("".join(f"{name}\n" for name in names))
    _depmod(entry, release, scratch)
    bzimage = (root / "boot" / f"vmlinuz-{release}").read_bytes()
    # QEMU boots either; unpacking here spares every guest the seconds.
    (entry / "vmlinux").write_bytes(_uncompressed(bzimage) or bzimage)
    (entry / "load-order").write_text("\n".join(names))
    digest = sha256(" ".join(_MODULES).encode()).hexdigest()[:8]
    entry.rename(cache_folder() / f"kernel-{digest}-{release}")
    kernel = cached_kernel()
    assert kernel is not None
    return kernel


def _depmod(entry: Path, release: str, scratch: Path) -> None:
    """Index the modules: daxctl looks up its driver by libkmod's index."""
    command = shutil.which("depmod", path=os.environ.get("PATH", "") + ":/sbin:/usr/sbin")
    argv = [command] if command else None
    if argv is None:
        root = _fetch_packages(["kmod"], scratch)
        (scratch / "depmod").symlink_to(next(root.glob("**/bin/kmod")))
        argv = [str(scratch / "depmod")]
    done = subprocess.run(
        [*argv, "-b", str(entry), release], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise LabError(f"depmod failed for kernel {release}: {done.stderr.strip()}")


def _package_names() -> list[str]:
    """The packages that hold the distribution's kernel and its modules."""
    if not shutil.which("apt-cache") or not shutil.which("apt-get"):
        raise MissingRequirementError(
            "a Linux kernel for the guests: /boot has none to use, and no apt is here to fetch one",
            "run on Debian or Ubuntu, or install a kernel with its modules in /boot",
        )
    listing = subprocess.run(
        ["apt-cache", "depends", "--recurse", "--no-recommends", "--no-suggests",
         "--no-conflicts", "--no-breaks", "--no-replaces", "--no-enhances", "--no-pre-depends",
         "--important", *_METAPACKAGES],
        capture_output=True, text=True, check=False,
    ).stdout  # fmt: skip
    pattern = r"^(linux-(?:image|modules|modules-extra)-\d[^\s<>]*)$"
    names = sorted(set(re.findall(pattern, listing, re.MULTILINE)))
    if not names:
        raise MissingRequirementError(
            f"a Linux kernel for the guests: apt knows no {' or '.join(_METAPACKAGES)}",
            "apt-get update",
        )
    return names


def _fetch_packages(names: list[str], scratch: Path) -> Path:
    """Download packages and unpack them in a folder of their own; nothing is installed."""
    folder = scratch / "packages"
    root = folder / "root"
    root.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", *names],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise MissingRequirementError(
            f"the packages {' '.join(names)} can't be fetched ({done.stderr.strip()[-300:]})",
            "apt-get update, with the network up; or install a kernel in /boot",
        )
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, root], check=True)
        package.unlink()
    return root


if __name__ == "__main__":  # fills the cache ahead of the first guest: `python -m …guest.kernel`
    print(get_kernel().image, file=sys.stdout)
