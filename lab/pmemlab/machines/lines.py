"""Lines of a command's output, told as they come."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Lines", "OnLine"]

OnLine = Callable[[str], None]
"""Is given a line without its end, as UTF-8 (other bytes as surrogate escapes)."""


class Lines:
    """Cuts streams, which come in pieces, into lines. A last one that has no end is never told."""

    def __init__(self, on_line: OnLine | None) -> None:
        self._on_line = on_line
        self._begun: dict[int, bytes] = {}  # by stream

    def feed(self, stream: int, data: bytes) -> None:
        """stream: any number that tells streams apart."""
        if self._on_line is None:
            return
        *lines, rest = (self._begun.get(stream, b"") + data).split(b"\n")
        self._begun[stream] = rest
        for line in lines:
            self._on_line(line.decode(errors="surrogateescape"))
