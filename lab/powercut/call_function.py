"""A Python function as a program of its own, so that a power cut can end it.

    python -m powercut.call_function FILE NAME MEDIUM [OUTPUT]

calls NAME of the module in FILE with the medium's folder, and with what the program printed. It
imports little, because it's started for each try.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any


def _call(file: str, name: str, medium: str, *output: str) -> None:
    sys.path.insert(0, str(Path(file).parent))
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    function: Any = module
    for part in name.split("."):
        function = getattr(function, part)
    function(Path(medium), *(Path(path).read_text(errors="replace") for path in output))


if __name__ == "__main__":
    _call(*sys.argv[1:])
