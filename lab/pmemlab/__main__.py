"""`python -m pmemlab`, the same as `pmemlab`."""

from __future__ import annotations

import sys
from typing import Final

from pmemlab.errors import EXEC_LAB_ERROR_STATUS, MissingRequirementError

__all__ = ["main"]

_LAB_ERROR_STATUS = 2
_PIP_INSTALL: Final = {
    "docker": "lab",
    "keras": "keras",
    "matplotlib": "report",
    "pydantic": "lab",
    "pydantic_core": "lab",
    "pytest": "lab",
    "ray": "cluster",
    "rich": "lab",
    "safetensors": "checkpoints",
    "torch": "torch",
    "yaml": "lab",
}
"""By the name of a module, the extra of this package that brings it."""


def main() -> int:
    """Runs the command line; says what to install if a package that it needs is missing."""
    try:
        from pmemlab.cli import main

        return main()
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module == "embstore":
            missing = MissingRequirementError("the engine, embstore", "make setup")
        elif module in _PIP_INSTALL:
            missing = MissingRequirementError(
                f"the Python package {module}", f"pip install 'pmemlab[{_PIP_INSTALL[module]}]'"
            )
        else:
            raise
        print(f"pmemlab: {missing}", file=sys.stderr)
        return EXEC_LAB_ERROR_STATUS if sys.argv[1:2] == ["exec"] else _LAB_ERROR_STATUS


if __name__ == "__main__":
    sys.exit(main())
