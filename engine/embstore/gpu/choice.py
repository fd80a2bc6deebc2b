"""Which GPU a tier of HBM lies on, and what it takes to open it."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
from pathlib import Path

from embstore.errors import InvalidArgumentError

__all__ = ["CUDA", "EMULATED", "check_gpu", "chosen_gpu", "full_name", "gpu_number", "gpu_to_open"]

CUDA = "cuda"
EMULATED = "emulated"
VARIABLE = "EMBSTORE_DEVICE"


def check_gpu(argument: str, name: object) -> str:
    """Raises InvalidArgumentError for a name that is none."""
    if not isinstance(name, str) or not re.fullmatch(r"cuda(:[0-9]{1,4})?|emulated", name):
        raise InvalidArgumentError(
            f'{argument} must be "cuda", "cuda:N" (N: the number of a GPU) or "emulated", '
            f"got {name!r}"
        )
    return name


def gpu_number(name: str) -> int:
    """Of "cuda" or "cuda:N"."""
    _, _, number = name.partition(":")
    return int(number or 0)


def full_name(name: str) -> str:
    """With its number, unless it is the emulated one."""
    return name if name == EMULATED else f"cuda:{gpu_number(name)}"


def chosen_gpu(name: str | None) -> str:
    """Returns the name of the GPU to use: `name`, else that in EMBSTORE_DEVICE, else "cuda"."""
    if name is None:
        return check_gpu(VARIABLE, os.environ.get(VARIABLE) or CUDA)
    return name


def gpu_to_open(name: str | None) -> tuple[str, str, str]:
    """Returns what the core is told of a GPU: its name as `chosen_gpu` has it, the library that
    compiles kernels, and the folder in which compiled ones are kept; none for the emulated one.
    """
    chosen = chosen_gpu(name)
    return (chosen, "", "") if chosen == EMULATED else (chosen, _nvrtc(), _kernel_cache())


def _nvrtc() -> str:
    """That of NVIDIA's package for CUDA 12, else of the one for CUDA 13, which PyTorch brings; else
    where the system looks for libraries. The older one works with more drivers.
    """
    for package in ("nvidia.cuda_nvrtc", "nvidia.cu13"):
        try:
            found = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            continue
        for folder in (found.submodule_search_locations if found else None) or ():
            for library in Path(folder).glob("lib/libnvrtc.so.*"):
                # CUDA 13's looks for them where the system does, and not beside itself; but it
                # takes what the process has.
                for builtins in library.parent.glob("libnvrtc-builtins.so.*"):
                    ctypes.CDLL(str(builtins))
                return str(library)
    return "libnvrtc.so.12"


def _kernel_cache() -> str:
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return str(caches / "embstore" / "kernels")
