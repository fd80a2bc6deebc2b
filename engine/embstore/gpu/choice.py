"""The choice of the GPU for a tier of HBM, and the libraries that are needed to open it."""

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
    """Returns `name`. Raises InvalidArgumentError if it doesn't name a GPU."""
    if not isinstance(name, str) or not re.fullmatch(r"cuda(:[0-9]{1,4})?|emulated", name):
        raise InvalidArgumentError(
            f'{argument} must be "cuda", "cuda:N" (N: the number of a GPU) or "emulated", '
            f"got {name!r}"
        )
    return name


def gpu_number(name: str) -> int:
    """Returns the number of "cuda", which is 0, or of "cuda:N"."""
    _, _, number = name.partition(":")
    return int(number or 0)


def full_name(name: str) -> str:
    """Returns the name with its number, "cuda:N"; that of the emulated GPU stays."""
    return name if name == EMULATED else f"cuda:{gpu_number(name)}"


def chosen_gpu(name: str | None) -> str:
    """Returns the name of the GPU to use: `name`, else that in EMBSTORE_DEVICE, else "cuda"."""
    if name is None:
        return check_gpu(VARIABLE, os.environ.get(VARIABLE) or CUDA)
    return name


def gpu_to_open(name: str | None) -> tuple[str, str, str]:
    """Returns the core's description of a GPU: its name from `chosen_gpu`, the library that
    compiles kernels, and the folder of compiled kernels; the last two are "" if it is emulated.
    """
    chosen = chosen_gpu(name)
    return (chosen, "", "") if chosen == EMULATED else (chosen, _nvrtc(), _kernel_cache())


def _nvrtc() -> str:
    """Returns the NVRTC library of NVIDIA's package for CUDA 12, else that of the package for CUDA
    13, which PyTorch brings, else a name that the system looks up. The older one works with more
    drivers.
    """
    for package in ("nvidia.cuda_nvrtc", "nvidia.cu13"):
        try:
            found = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            continue
        for folder in (found.submodule_search_locations if found else None) or ():
            for library in Path(folder).glob("lib/libnvrtc.so.*"):
                # CUDA 13's NVRTC looks for its builtins in the system's folders, not beside itself,
                # but uses a library that the process has loaded already.
                for builtins in library.parent.glob("libnvrtc-builtins.so.*"):
                    ctypes.CDLL(str(builtins))
                return str(library)
    return "libnvrtc.so.12"


def _kernel_cache() -> str:
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return str(caches / "embstore" / "kernels")
