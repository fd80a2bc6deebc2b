"""The folders of this computer that a guest can see.

QEMU runs as the user who starts it, so root's guest could read every file if it had the root
folder. A guest gets the system's programs and libraries, this project, and this Python's
environment, read-only. From /etc it gets copies of the few files that programs need. It gets
nothing of /home, /root, /var, /tmp, /run and /proc except shared folders that lie there.
"""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pmemlab.machines.guest.host_files import package_folders
from pmemlab.machines.guest.initramfs import Entries

__all__ = [
    "LIST",
    "Share",
    "foreign_site_folders",
    "guest_root",
    "is_shareable",
    "shared_folders",
]

LIST = "shares"
"""In the initramfs: a line `TAG PATH` for each share, for the script that mounts them."""

_SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
# Needed by the dynamic linker, mkfs, ndctl, daxctl, terminals and Debian's alternatives.
_ETC = (
    *("alternatives", "bash.bashrc", "daxctl.conf.d", "debian_version", "hosts", "inputrc"),
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "mke2fs.conf", "modprobe.d"),
    *("ndctl.conf.d", "nsswitch.conf", "os-release", "profile", "profile.d", "protocols"),
    *("python3*", "services", "shells", "terminfo", "timezone"),
)
_COPIED = (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)
_OWN_ETC = {
    "passwd": b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/nonexistent:/bin/false\n",
    "group": b"root:x:0:\nnogroup:x:65534:\n",
}
_FOLDERS = (
    *("etc", "home", "media", "mnt", "opt", "srv", "var", "var/cache", "var/lib"),
    *("var/log", "dev", "proc", "run", "sys"),
)


@dataclass(frozen=True)
class Share:
    """A folder of this computer.

    path: its path here; also in the guest, unless the guest may write to it.
    """

    tag: str
    path: Path
    writable: bool = False

    def qemu_options(self) -> str:
        """Returns QEMU's options for the guest's rights in the folder.

        All files written by a guest are plain files and folders of the user who started it, without
        special bits: QEMU only notes the owner, mode and kind that the guest gave them. Otherwise
        root's guest could leave programs that run as root, devices, and links to any place.
        """
        if not self.writable:
            return "security_model=none,readonly=on"
        noted_in = "xattr" if _keeps_attributes(self.path) else "file"
        return f"security_model=mapped-{noted_in},fmode=0644,dmode=0755"


def _keeps_attributes(folder: Path) -> bool:
    """Returns whether files there can have user attributes; on tmpfs only since Linux 6.6."""
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        try:
            os.setxattr(file.fileno(), "user.virtfs", b"")
        except OSError:
            return False
    return True


def shared_folders() -> list[Share]:
    """Returns the folders that guests see, none of them inside another."""
    folders = [*_system_folders(), Path(sys.prefix), Path(sys.base_prefix)]
    folders += [Path(os.path.realpath(sys.executable)).parent]
    folders += [_clone_of(folder) or folder for folder in package_folders()]
    folders += foreign_site_folders()
    return [Share(f"share{number}", path) for number, path in enumerate(_outermost(folders))]


def is_shareable(folder: Path) -> bool:
    """Returns whether the folder's path can be written in the list of shares."""
    return "\n" not in str(folder)


def foreign_site_folders() -> list[Path]:
    """Returns folders of installed packages on sys.path that are not in this Python's folders."""
    python_folders = (sys.prefix, sys.base_prefix, "/usr")
    return [
        Path(entry).absolute()
        for entry in dict.fromkeys(sys.path)
        if Path(entry).name in ("site-packages", "dist-packages")
        and Path(entry).is_dir()
        and not any(Path(entry).is_relative_to(folder) for folder in python_folders)
    ]


def guest_root(shares: Sequence[Share]) -> Entries:
    """Returns entries of the initramfs: a guest's root without the shares, and the shares' list."""
    entries: Entries = {"skeleton": _folder()}
    for name in _FOLDERS:
        entries[f"skeleton/{name}"] = _folder()
    entries["skeleton/root"] = (stat.S_IFDIR | 0o700, b"")
    for name in ("tmp", "var/tmp"):
        entries[f"skeleton/{name}"] = (stat.S_IFDIR | 0o1777, b"")
    for name in _SYSTEM:
        if (Path("/") / name).is_symlink():
            entries[f"skeleton/{name}"] = _link(Path("/") / name)
    for path in _etc_files():
        entries[f"skeleton{path}"] = _entry(path)
    for name, content in _OWN_ETC.items():
        entries[f"skeleton/etc/{name}"] = (stat.S_IFREG | 0o644, content)
    lines = "".join(f"{share.tag} {share.path}\n" for share in shares)
    entries[LIST] = (stat.S_IFREG | 0o644, os.fsencode(lines))
    return entries


def _system_folders() -> list[Path]:
    folders = (Path("/") / name for name in _SYSTEM)
    return [folder for folder in folders if folder.is_dir() and not folder.is_symlink()]


def _clone_of(package: Path) -> Path | None:
    """Returns the clone that contains a package's folder, so that guests get its other files."""
    for folder in package.absolute().parents:
        if (folder / "compose.yaml").is_file() and (folder / "lab/pmemlab").is_dir():
            return folder
    return None


def _outermost(folders: Iterable[Path]) -> list[Path]:
    """Returns each folder by its given path and by its resolved path, without folders inside
    another one of them.
    """
    paths = {Path(os.path.abspath(path)) for path in folders}  # noqa: PTH100 - links stay links
    paths |= {path.resolve() for path in paths}
    return sorted(path for path in paths if not paths & set(path.parents))


def _etc_files() -> Iterator[Path]:
    """Yields files of /etc that everybody may read: root's guest gets no more than a user's."""
    for pattern in _ETC:
        for top in sorted(Path("/etc").glob(pattern)):
            is_folder = top.is_dir() and not top.is_symlink()
            inside = sorted(top.rglob("*")) if is_folder else []
            for path in (top, *inside):
                mode = path.lstat().st_mode
                if mode & stat.S_IROTH and stat.S_IFMT(mode) in _COPIED:
                    yield path


def _entry(path: Path) -> tuple[int, bytes]:
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return _link(path)
    return _folder() if stat.S_ISDIR(mode) else (stat.S_IFREG | 0o644, path.read_bytes())


def _link(path: Path) -> tuple[int, bytes]:
    return stat.S_IFLNK | 0o777, os.fsencode(path.readlink())


def _folder() -> tuple[int, bytes]:
    return stat.S_IFDIR | 0o755, b""
