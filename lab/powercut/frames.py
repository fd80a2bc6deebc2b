"""Call stacks for people: lines of source if the program has debugging information."""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import PurePath

__all__ = ["frame_text", "short_stack"]

_SHOWN_FRAMES = 4


@functools.cache
def frame_text(frame: str) -> str:
    """Returns a frame as file and line, or module+offset, with the function if known."""
    address, _, symbol = frame.partition(" ")
    module, plus, offset = address.rpartition("+")
    if not plus:  # Python's: path:line function
        path, _, line = address.rpartition(":")
        return f"{PurePath(path).name}:{line}" + (f" {symbol}" if symbol else "")
    found, line = _source_line(module, offset)
    name = found or symbol
    where = line or f"{PurePath(module).name}{plus}{offset}"
    return f"{where} {name}" if name else where


def short_stack(frames: Sequence[str]) -> str:
    """Returns the innermost frames, without those of libc that start every program."""
    own = [frame_text(frame) for frame in frames if "/libc.so" not in frame]
    return " ← ".join(own[:_SHOWN_FRAMES]) or "?"


@functools.cache
def _source_line(module: str, offset: str) -> tuple[str, str]:
    """Returns the function and "file:line", empty if unknown."""
    tool = shutil.which("addr2line")
    if tool is None:
        return "", ""
    command = [tool, "-Cfe", module, offset]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    if done.returncode != 0 or len(lines) < 2 or lines[0] == "??":
        return "", ""
    file, _, line = lines[1].split(" ")[0].rpartition(":")
    known = file not in ("", "??") and line.isdigit() and line != "0"
    # Without lines, the name is that of the nearest symbol, which may be another function.
    return (lines[0], f"{PurePath(file).name}:{line}") if known else ("", "")
