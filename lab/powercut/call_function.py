"""Runs a Python function as a program of its own, so that a power cut can end it.

    python -m powercut.call_function FILE MODULE NAME MEDIUM [OUTPUT]

calls NAME of the module in FILE with the medium's folder and the program's output. The module is
imported by its name if the name leads to the file, else from the file alone. This module imports
little, because it may be started for each try.
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
    """Imports the module, once for all programs that a process forks."""
    _module(*arguments[:2])


def main() -> None:
    """Calls the function."""
    file, module, name, medium, *output = sys.argv[1:]
    function: Any = _module(file, module)
    for part in name.split("."):
        function = getattr(function, part)
    function(Path(medium), *(Path(path).read_text(errors="replace") for path in output))


def _module(file: str, name: str) -> ModuleType:
    known = sys.modules.get(name)
    if known is not None and _has_origin(known.__spec__, file):
        return known
    if _has_origin(_spec(name), file):
        return importlib.import_module(name)
    sys.path.append(str(Path(file).parent))
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


def _spec(name: str) -> Any:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):  # for example, its package isn't on the path
        return None


def _has_origin(spec: Any, file: str) -> bool:
    origin = None if spec is None else spec.origin
    return origin is not None and Path(origin).resolve() == Path(file)


if __name__ == "__main__":
    main()
