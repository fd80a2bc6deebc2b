"""What a guest sees of this computer: the folders that it needs, and nothing else.

QEMU runs as whoever starts it, so a guest of root's could read every file if it were given the
root folder. It is given the system's programs and libraries, this project, and the environment of
this Python, read-only; of /etc, copies of the few files that programs want; and nothing of /home,
/root, /var, /tmp, /run and /proc but what of these three lies there.
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
"""In the initramfs: a line a share, `TAG PATH`, for the script that mounts them."""

_SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
# What programs look for: the dynamic linker, mkfs, ndctl, daxctl, terminals, Debian's alternatives.
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

    path: where it is here; and in the guest too, unless the guest may write to it.
    """

    tag: str
    path: Path
    writable: bool = False

    def qemu_options(self) -> str:
        """QEMU's options for what the guest may do there.

        All that a guest writes are plain files and folders of whoever started it, without special
        bits: QEMU only notes which owner, mode and kind the guest gave them. Else root's guest
        could leave programs that run as root, devices, and links to anywhere.
        """
        if not self.writable:
            return "security_model=none,readonly=on"
        noted_in = "xattr" if _keeps_attributes(self.path) else "file"
        return f"security_model=mapped-{noted_in},fmode=0644,dmode=0755"


def _keeps_attributes(folder: Path) -> bool:
    """Whether files there can have attributes of users' own; on tmpfs, only since Linux 6.6."""
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        try:
            os.setxattr(file.fileno(), "user.virtfs", b"")
        except OSError:
            return False
    return True


def shared_folders() -> list[Share]:
    """The folders that guests see, none of them within another."""
    wanted = [*_system_folders(), Path(sys.prefix), Path(sys.base_prefix)]
    wanted += [Path(os.path.realpath(sys.executable)).parent]
    wanted += [_clone_of(folder) or folder for folder in package_folders()]
    wanted += foreign_site_folders()
    return [Share(f"share{number}", path) for number, path in enumerate(_outermost(wanted))]


def is_shareable(folder: Path) -> bool:
    """Whether its path can be said in the list of shares."""
    return "\n" not in str(folder)


def foreign_site_folders() -> list[Path]:
    """Folders of installed packages that this Python was told of, beside those of its own."""
    own = (sys.prefix, sys.base_prefix, "/usr")
    return [
        Path(entry).absolute()
        for entry in dict.fromkeys(sys.path)
        if Path(entry).name in ("site-packages", "dist-packages")
        and Path(entry).is_dir()
        and not any(Path(entry).is_relative_to(folder) for folder in own)
    ]


def guest_root(shares: Sequence[Share]) -> Entries:
    """Entries of the initramfs: what a guest's root has beside the shares, and their list."""
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
    """The clone that a package's folder lies in, so that a guest has its other files too."""
    for folder in package.absolute().parents:
        if (folder / "compose.yaml").is_file() and (folder / "lab/pmemlab").is_dir():
            return folder
    return None


def _outermost(folders: Iterable[Path]) -> list[Path]:
    """Each by the path it is known by and by the one that it really has, without what lies inside
    another one.
    """
    paths = {Path(os.path.abspath(path)) for path in folders}  # noqa: PTH100 - links stay links
    paths |= {path.resolve() for path in paths}
    return sorted(path for path in paths if not paths & set(path.parents))


def _etc_files() -> Iterator[Path]:
    """Only what everybody may read: a guest of root's gets no more than another user's."""
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
