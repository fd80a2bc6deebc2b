"""The module that programs.py forks: it runs a program's text as `python -c` does.

A fork needn't import NumPy, the engine and pytest, which takes longer than most programs do.
"""

from __future__ import annotations

import faulthandler
import signal
import sys

import numpy  # noqa: F401  for the programs
import pytest  # noqa: F401

import embstore  # noqa: F401

# The signal on which a program and its forks print the stacks of their threads.
PRINT_STACKS_SIGNAL = signal.SIGUSR1


def main() -> None:
    faulthandler.register(PRINT_STACKS_SIGNAL, sys.stderr)
    text, *arguments = sys.argv[1:]
    sys.argv = ["-c", *arguments]
    exec(compile(text, "<string>", "exec"), vars(sys.modules["__main__"]))
