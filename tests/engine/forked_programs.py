"""What programs.py runs in forks: a program's text, as `python -c` has it.

Importing NumPy, the engine and pytest takes longer than most programs do.
"""

from __future__ import annotations

import faulthandler
import signal
import sys

import numpy  # noqa: F401  for the programs
import pytest  # noqa: F401

import embstore  # noqa: F401

# Has a program and its forks tell where each of their threads is.
WHERE_IT_IS = signal.SIGUSR1


def main() -> None:
    faulthandler.register(WHERE_IT_IS, sys.stderr)
    text, *arguments = sys.argv[1:]
    sys.argv = ["-c", *arguments]
    exec(compile(text, "<string>", "exec"), vars(sys.modules["__main__"]))
