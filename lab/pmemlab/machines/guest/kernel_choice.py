"""Turns the kernel that a user names by its version or its file (`--kernel`) into a folder.

Kernels are taken from a folder that contains boot/ and lib/modules/, as named by $PMEMLAB_KERNEL.
The user's choice becomes such a folder: links to a kernel and its modules.
"""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

from pmemlab.errors import LabError
from pmemlab.machines.guest.cache import cache_folder

__all__ = ["kernel_folder"]

_ROOT = Path("/")
_IMAGE = "vmlinuz-"


def kernel_folder(choice: str) -> Path:
    """Returns the folder for a choice, which is one of

    - a version of this computer's, as in /boot/vmlinuz-VERSION;
    - the file of an image, FOLDER/boot/vmlinuz-VERSION, with its modules in FOLDER/lib/modules;
    - such a FOLDER itself.

    Raises `LabError`, which lists the versions that exist.
    """
    path = Path(choice)
    if os.sep in choice and path.is_dir():
        return path.absolute()
    image = path.absolute() if os.sep in choice else _ROOT / "boot" / f"{_IMAGE}{choice}"
    if not image.is_file():
        raise LabError(f"--kernel {choice}: there is no {image}; {_versions_text(image.parent)}")
    if not image.name.startswith(_IMAGE):
        raise LabError(f"--kernel {choice}: must be called {_IMAGE}VERSION, as packages call it")
    version = image.name.removeprefix(_IMAGE)
    return _linked(image, _modules_of(image, version), version)


def _modules_of(image: Path, version: str) -> Path:
    root = image.parent.parent
    places = [root / tree / "lib/modules" / version for tree in (".", "usr")]
    for place in places:
        if place.is_dir():
            return place
    raise LabError(f"{image} has no modules: there is no {places[0]}")


def _linked(image: Path, modules: Path, version: str) -> Path:
    # A changed image under the same name gets another folder.
    made_of = f"{image}\0{image.stat().st_mtime_ns}\0{modules}"
    folder = cache_folder() / "chosen" / sha256(made_of.encode()).hexdigest()[:16]
    for link, target in (
        (folder / "boot" / image.name, image),
        (folder / "lib/modules" / version, modules),
    ):
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(target)
    return folder


def _versions_text(boot: Path) -> str:
    images = sorted(path.name.removeprefix(_IMAGE) for path in boot.glob(f"{_IMAGE}*"))
    return f"in {boot} there are the versions {', '.join(images) or 'none'}"
