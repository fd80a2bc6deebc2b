"""The entry point of `python -m pmemlab`, the same as `pmemlab`."""

from __future__ import annotations

import os
import sys
from typing import Final

from pmemlab.errors import MissingRequirementError, lab_error_status

__all__ = ["main"]

_INSTALLED_BY: Final = {
    "docker": "pmemlab",
    "jinja2": "pmemlab[report]",
    "keras": "embstore[keras]",
    "matplotlib": "pmemlab[report]",
    "numpy": "embstore",
    "pydantic": "pmemlab",
    "pydantic_core": "pmemlab",
    "pytest": "pmemlab",
    "ray": "embstore[cluster]",
    "rich": "pmemlab",
    "torch": "embstore[torch]",
    "yaml": "pmemlab",
}
"""The pip requirement that installs each module."""


def main() -> int:
    """Runs the command line. If a package is missing, says how to install it."""
    _open_closed_streams()
    try:
        from pmemlab.cli import main

        return main()
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module == "embstore":
            missing = MissingRequirementError("the engine, embstore", "make setup")
        elif module in _INSTALLED_BY:
            missing = MissingRequirementError(
                f"the Python package {module}", f"pip install '{_INSTALLED_BY[module]}'"
            )
        else:
            raise
        print(f"pmemlab: {missing}", file=sys.stderr)
        return lab_error_status(sys.argv[1:])


def _open_closed_streams() -> None:
    """Opens /dev/null as each standard stream that is closed.

    A file or socket opened later would otherwise get the stream's number and receive its output.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, "r" if name == "stdin" else "w"))


if __name__ == "__main__":
    sys.exit(main())
