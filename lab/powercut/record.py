"""The record of a run without a cut: its cut points, call sites and useless calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CallSite", "CutPlace", "Record", "Use", "read_record"]


@dataclass(frozen=True)
class CutPlace:
    """A call with its call stack. frames: innermost first. points: its numbers in the run."""

    kind: str
    function: str
    frames: tuple[str, ...]
    points: tuple[int, ...]


@dataclass(frozen=True)
class CallSite:
    """A part that can be taken out: `what` (flush, drain or sync) of the calls from one place."""

    site: str
    what: str
    function: str
    calls: int

    @property
    def name(self) -> str:
        return f"{self.what} {self.site}"


@dataclass(frozen=True)
class Use:
    """Calls with one stack that make something durable, and how many of them had nothing to do.

    lines, clean_lines: for flushes: lines of 64 bytes, and those that the medium had already, or
    would have after the next drain.
    """

    what: str
    function: str
    frames: tuple[str, ...]
    calls: int
    useless_calls: int
    lines: int
    clean_lines: int


@dataclass(frozen=True)
class Record:
    """A run's record. duration_us: from the first use of the medium to the end."""

    point_count: int
    duration_us: int
    places: tuple[CutPlace, ...]
    sites: tuple[CallSite, ...]
    uses: tuple[Use, ...]

    @property
    def useless(self) -> list[Use]:
        return [use for use in self.uses if use.useless_calls]


def read_record(path: Path) -> Record:
    document = json.loads(path.read_bytes().decode(errors="surrogateescape"))
    points: Sequence[int] = document["points"]
    numbers: list[list[int]] = [[] for _ in document["places"]]
    for number, place in enumerate(points, 1):
        numbers[place].append(number)
    return Record(
        point_count=len(points),
        duration_us=document["duration_us"],
        places=tuple(
            CutPlace(place["kind"], place["function"], tuple(place["frames"]), tuple(own))
            for place, own in zip(document["places"], numbers, strict=True)
        ),
        sites=tuple(CallSite(**site) for site in document["sites"]),
        uses=tuple(Use(**{**use, "frames": tuple(use["frames"])}) for use in document["uses"]),
    )
