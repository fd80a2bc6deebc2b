"""A Python function as a program of its own, so that a power cut can end it.

    python -m powercut.call_function FILE NAME MEDIUM [OUTPUT]

calls NAME of the module in FILE with the medium's folder, and with what the program printed. It
imports little, because it may be started for each try.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["main", "prepare"]


def prepare(arguments: Sequence[str]) -> None:
    """Import the module: once for all that a process forks."""
    _module(arguments[0])


def main() -> None:
    """Call the function."""
    file, name, medium, *output = sys.argv[1:]
    function: Any = _module(file)
    for part in name.split("."):
        function = getattr(function, part)
    function(Path(medium), *(Path(path).read_text(errors="replace") for path in output))


def _module(file: str) -> ModuleType:
    name = Path(file).stem
    known = sys.modules.get(name)
    if known is not None and known.__spec__ is not None and known.__spec__.origin == file:
        return known
    sys.path.insert(0, str(Path(file).parent))
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


if __name__ == "__main__":
    main()
