"""The guests' kernel: found in /boot or downloaded from the distribution, never installed.

Only the files that guests need are kept: the uncompressed kernel (a guest without KVM takes seconds
to unpack one) and the modules to load, with their dependencies.
"""

from __future__ import annotations

import gzip
import lzma
import os
import re
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from pmemlab.errors import LabError, MissingRequirementError
from pmemlab.machines.guest.cache import build_once, cache_folder

__all__ = ["Kernel", "KernelSource", "cached_kernel", "get_kernel", "kernel_source"]

# Every guest loads these, in this order, each after its dependencies.
_MODULES = [
    *("virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay"),
    *("libnvdimm", "nd_e820", "nfit", "nd_pmem", "dax_pmem", "device_dax", "kmem"),
    "ext4",
    "nvme",
]
# Kept for the topologies that load them by modprobe, if the kernel has them. Each costs time, so no
# other guest loads them.
_MORE_MODULES = [
    *("ahci", "sd_mod", "dm_mod"),
    *("cxl_acpi", "cxl_port", "cxl_pci", "cxl_mem", "cxl_pmem", "dax_cxl"),
]
# The crypto API requests an algorithm by name, and in an initramfs no process answers. Modules that
# need an algorithm declare it (softdep). Any of these modules provides it.
_ALGORITHMS = {"crc32c": ("crc32c_generic", "crc32c_cryptoapi")}
# Faster modules for the same algorithms, in kernels that have them as modules (up to 6.13).
_OPTIONAL_MODULES = ["crc32c_intel"]
_METAPACKAGES = ("linux-image-amd64", "linux-image-generic")
_ROOT = Path("/")
_CHECKSUMS = "checksums"  # of a cache entry's other files
_SOURCE_FILE = "taken-from"  # the image's path, if the user named its folder


@dataclass(frozen=True)
class Kernel:
    """A guest kernel. release: as `uname -r` prints it. image: uncompressed ELF.

    modules: files in loading order.
    """

    release: str
    image: Path
    folder: Path

    @property
    def modules(self) -> list[Path]:
        names = (self.folder / "load-order").read_text().split()
        return [self.folder / "lib/modules" / self.release / name for name in names]


def cached_kernel() -> Kernel | None:
    """Returns the newest kernel in the cache, or None if there is none."""
    prefix = _cache_prefix()
    entries = sorted(cache_folder().glob(f"{prefix}*"), key=lambda entry: entry.stat().st_mtime)
    if not entries:
        return None
    folder = entries[-1]
    return Kernel(folder.name.removeprefix(prefix), folder / "vmlinux", folder)


def _cache_prefix() -> str:
    """Returns the prefix of cache entries' names, in which each list of modules has its own."""
    modules = [*_MODULES, *_MORE_MODULES, *_OPTIONAL_MODULES]
    folder = _user_kernel_folder()
    if folder:
        modules.append(str(folder.absolute()))
    return f"kernel-{sha256(' '.join(modules).encode()).hexdigest()[:8]}-"


def _user_kernel_folder() -> Path | None:
    """Returns the folder given by the user to take kernels from, or None."""
    name = os.environ.get("PMEMLAB_KERNEL")
    return Path(name) if name else None


@dataclass(frozen=True)
class KernelSource:
    """The source of the kernel. release: as in `Kernel`. description: for people."""

    release: str
    description: str


def kernel_source() -> KernelSource:
    """Returns the place that `get_kernel` would use, but gets nothing. Raises as it does."""
    kernel = cached_kernel()
    if kernel:
        return KernelSource(kernel.release, f"kernel {kernel.release} from {cache_folder()}")
    root = _user_kernel_folder() or _ROOT
    release, why = _find_release(root)
    if release:
        return KernelSource(release, f"kernel {release} from {_images(root)[release].parent}")
    if _user_kernel_folder():
        raise _user_kernel_error(why)
    package = _package_names(why)[0]
    return KernelSource(
        re.sub(r"^[^0-9]*", "", package),
        f"kernel from the package {package}, fetched at the first start",
    )


def get_kernel() -> Kernel:
    """Returns the guests' kernel: from the cache, else from /boot, else from the distribution's
    package. If $PMEMLAB_KERNEL is set: from the cache, else from that folder.

    Raises `MissingRequirementError` if no kernel can be had, naming the modules that the kernels
    found lack.
    """
    kernel = cached_kernel()
    if kernel and _is_intact(kernel.folder):
        return kernel
    with build_once() as scratch:
        kernel = cached_kernel()  # a previous holder of the lock may have built it
        if kernel is None:
            return _make(scratch)
        if _is_intact(kernel.folder):
            return kernel
        try:
            return _make(scratch)
        except LabError as error:
            raise LabError(
                f"the guests' kernel in {kernel.folder} is damaged, and can't be made anew: {error}"
            ) from error


def _make(scratch: Path) -> Kernel:
    """Makes a cache entry of the kernel. Raises as `get_kernel` does."""
    root = _user_kernel_folder() or _ROOT
    release, why = _find_release(root)
    if release:
        return _publish(root, release, scratch)
    if _user_kernel_folder():
        raise _user_kernel_error(why)
    names = _package_names(why)
    root = _fetch_packages(names, scratch)
    release, why = _find_release(root)
    if release:
        return _publish(root, release, scratch)
    raise LabError(f"no guest can start on the kernel of {' '.join(names)}: {'; '.join(why)}")


def _is_intact(entry: Path) -> bool:
    """Returns whether a cache entry's files match their checksums: a disk may have lost some."""
    try:
        return (entry / _CHECKSUMS).read_bytes() == _checksums(entry)
    except OSError:
        return False


def _checksums(entry: Path) -> bytes:
    files = sorted(path for path in entry.rglob("*") if path.is_file() and path.name != _CHECKSUMS)
    lines = (f"{zlib.crc32(path.read_bytes()):08x} {path.relative_to(entry)}\n" for path in files)
    return "".join(lines).encode()


def _user_kernel_error(why: list[str]) -> MissingRequirementError:
    return MissingRequirementError(
        f"a Linux kernel for the guests in PMEMLAB_KERNEL={_user_kernel_folder()} "
        f"({'; '.join(why) or 'it has neither boot/vmlinuz-* nor usr/lib/modules/*/vmlinuz'})",
        "unpack a kernel's packages there (dpkg -x FILE.deb FOLDER), or unset PMEMLAB_KERNEL",
    )


def _find_release(root: Path) -> tuple[str | None, list[str]]:
    """Returns the newest release with a readable image and all modules, and the reasons against the
    newer ones.
    """
    why = []
    images = _images(root)
    for release in sorted(images, key=_numbers, reverse=True):
        image, tree = images[release], _module_tree(root, release)
        if not os.access(image, os.R_OK):
            why.append(f"{image} may not be read")
        elif not (tree / "modules.builtin").is_file():
            why.append(f"{release} has no modules in {tree}")
        else:
            try:
                _load_order(tree)
            except _ModuleMissingError as error:
                why.append(f"{release} lacks the module {error}")
            else:
                return release, why
    return None, why


def _images(root: Path) -> dict[str, Path]:
    """Returns release -> kernel: in /boot, or beside its modules, where newer packages put it."""
    in_modules = {path.parent.name: path for path in root.glob("usr/lib/modules/*/vmlinuz")}
    in_boot = {
        path.name.removeprefix("vmlinuz-"): path for path in (root / "boot").glob("vmlinuz-*")
    }
    return in_modules | in_boot


def _module_tree(root: Path, release: str) -> Path:
    """Returns the folder of modules: packages only unpacked lack the link from /lib to /usr/lib."""
    trees = [root / folder / "lib/modules" / release for folder in (".", "usr")]
    return trees[0] if trees[0].is_dir() else trees[1]


def _numbers(name: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", name)]


def _module_files(tree: Path) -> dict[str, Path]:
    files = (path for path in tree.rglob("*.ko*") if path.suffix in _READERS)
    return {path.name.split(".")[0].replace("-", "_"): path for path in files}


def _unpack_zstd(packed: bytes) -> bytes:
    if sys.version_info >= (3, 14):
        from compression import zstd

        try:
            return zstd.decompress(packed)
        except zstd.ZstdError as error:
            raise OSError(str(error)) from error
    program = shutil.which("zstd")
    if program is None:
        raise MissingRequirementError(
            "zstd, to unpack the kernel's modules (*.ko.zst)", "apt-get install zstd"
        )
    return subprocess.run([program, "-dc"], input=packed, check=True, capture_output=True).stdout


_READERS: dict[str, Callable[[bytes], bytes]] = {
    ".ko": bytes,
    ".gz": gzip.decompress,
    ".xz": lzma.decompress,
    ".zst": _unpack_zstd,
}


def _read_module(path: Path) -> bytes:
    try:
        return _READERS[path.suffix](path.read_bytes())
    except (OSError, EOFError, lzma.LZMAError, zlib.error, subprocess.CalledProcessError) as error:
        raise LabError(f"the kernel module {path} can't be unpacked: {error}") from error


class _ModuleMissingError(LookupError):
    """A module is missing. The text is its name, with the module that needs it."""


@dataclass(frozen=True)
class _LoadOrder:
    """Modules by name, dependencies first. at_boot: those that every guest loads."""

    files: dict[str, Path]
    at_boot: list[str]


def _load_order(tree: Path) -> _LoadOrder:
    """Returns the modules to load. Raises `_ModuleMissingError`."""
    builtin = {
        line.rsplit("/", 1)[-1].strip().removesuffix(".ko").replace("-", "_")
        for line in (tree / "modules.builtin").read_text().splitlines()
    }
    files = _module_files(tree)
    order: dict[str, Path] = {}

    def add(name: str, wanted_by: str = "") -> None:
        if name in order or name in builtin:
            return
        if name not in files:
            raise _ModuleMissingError(f"{name}, which {wanted_by} needs" if wanted_by else name)
        module = _read_module(files[name])
        # modinfo's own "depends=", which is what depmod would compute
        for dependency in _modinfo(module, b"depends").replace(",", " ").split():
            add(dependency.replace("-", "_"), name)
        for algorithm in _modinfo(module, b"softdep").split():
            # "pre: crc32c" of old kernels, "pre: crypto-crc32c" of newer ones
            having = _ALGORITHMS.get(algorithm.removeprefix("crypto-"))
            if having:
                known = [one for one in having if one in files or one in builtin]
                add((known or having)[0], name)
        order[name] = files[name]

    def add_existing(modules: Sequence[str]) -> None:
        for module in modules:
            if module in files:
                add(module)

    add_existing(_OPTIONAL_MODULES)
    for module in _MODULES:
        add(module)
    at_boot = [*order]
    add_existing(_MORE_MODULES)
    return _LoadOrder(order, at_boot)


def _modinfo(module: bytes, key: bytes) -> str:
    """Returns all values of a key, separated by blanks."""
    values = re.findall(rb"(?<=\x00)" + key + rb"=([^\x00]*)", module)
    return b" ".join(values).decode()


def _uncompressed(image: bytes) -> bytes | None:
    """Returns the ELF kernel inside a bzImage; None if no program here can unpack it.

    The image's header gives the place of the packed kernel (linux: arch/x86/boot.rst).
    """
    if image[0x202:0x206] != b"HdrS" or len(image) < 0x250:
        return None
    start = (image[0x1F1] + 1) * 512 + int.from_bytes(image[0x248:0x24C], "little")
    packed = image[start : start + int.from_bytes(image[0x24C:0x250], "little")]
    try:
        if packed.startswith(b"\xfd7zXZ\x00"):
            kernel = lzma.LZMADecompressor(lzma.FORMAT_XZ).decompress(packed)
        elif packed.startswith(b"\x28\xb5\x2f\xfd"):
            kernel = _unpack_zstd(packed[:-4])  # the last 4 bytes are its size
        else:
            return None
    except (lzma.LZMAError, OSError, subprocess.CalledProcessError, MissingRequirementError):
        return None
    return kernel if kernel.startswith(b"\x7fELF") else None


def _publish(root: Path, release: str, scratch: Path) -> Kernel:
    """Makes a cache entry of a kernel and the modules that it needs."""
    tree = _module_tree(root, release)
    entry = scratch / "entry"
    target = entry / "lib/modules" / release
    target.mkdir(parents=True)
    order = _load_order(tree)
    (target / "kernel").mkdir()
    for name, path in order.files.items():
        (target / "kernel" / f"{name}.ko").write_bytes(_read_module(path))
    names = [f"kernel/{name}.ko" for name in order.files]
    for path in tree.glob("modules.builtin*"):
        if not path.name.endswith(".bin"):
            shutil.copy(path, target)
    (target / "modules.order").write_text("".join(f"{name}\n" for name in names))
    _depmod(entry, release, scratch)
    bzimage = _images(root)[release].read_bytes()
    # QEMU boots both; unpacking here saves every guest seconds.
    (entry / "vmlinux").write_bytes(_uncompressed(bzimage) or bzimage)
    (entry / "load-order").write_text("\n".join(f"kernel/{name}.ko" for name in order.at_boot))
    if _user_kernel_folder():
        (entry / _SOURCE_FILE).write_bytes(os.fsencode(_images(root)[release].resolve()))
    (entry / _CHECKSUMS).write_bytes(_checksums(entry))
    _remove_stale_entries(scratch)
    place = cache_folder() / f"{_cache_prefix()}{release}"
    if place.exists():  # a damaged entry
        place.rename(scratch / "damaged")
    entry.rename(place)
    kernel = cached_kernel()
    assert kernel is not None
    return kernel


def _remove_stale_entries(scratch: Path) -> None:
    """Removes entries of images that are gone, for example with a clone that had its own kernel."""
    for source_file in cache_folder().glob(f"kernel-*/{_SOURCE_FILE}"):
        if not Path(os.fsdecode(source_file.read_bytes())).exists():
            source_file.parent.rename(scratch / source_file.parent.name)


def _depmod(entry: Path, release: str, scratch: Path) -> None:
    """Indexes the modules: daxctl looks its driver up in libkmod's index."""
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


def _package_names(why: list[str]) -> list[str]:
    """Returns the packages that contain the distribution's kernel and its modules.

    why: the faults of the kernels in /boot.
    """
    if not shutil.which("apt-cache") or not shutil.which("apt-get"):
        found = f"/boot has none to use ({'; '.join(why)})" if why else "/boot has none"
        raise MissingRequirementError(
            f"a Linux kernel for the guests: {found}, and no apt is here to fetch one",
            "run on Debian or Ubuntu, or install a kernel with its modules in /boot",
        )
    listing = subprocess.run(
        ["apt-cache", "depends", "--recurse", "--no-recommends", "--no-suggests",
         "--no-conflicts", "--no-breaks", "--no-replaces", "--no-enhances", "--no-pre-depends",
         "--important", *_METAPACKAGES],
        capture_output=True, text=True, check=False,
    ).stdout  # fmt: skip
    pattern = r"^(linux-(?:image|base|binary|modules|modules-extra)-\d[^\s<>]*)$"
    names = sorted(set(re.findall(pattern, listing, re.MULTILINE)))
    if not names:
        raise MissingRequirementError(
            f"a Linux kernel for the guests: apt knows no {' or '.join(_METAPACKAGES)}",
            "apt-get update",
        )
    return names


def _fetch_packages(names: list[str], scratch: Path) -> Path:
    """Downloads packages and unpacks them in a folder of their own; nothing is installed."""
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
