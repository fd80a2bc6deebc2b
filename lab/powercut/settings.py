"""How the power is cut: what the library is told in environment variables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from powercut.errors import PowercutError

__all__ = ["POINT_KINDS", "CutSettings", "Moment"]

POINT_KINDS = ("drain", "sync", "name", "write", "exit")

_MOST_SITE_FRAMES = 1000  # the library has room made for as many, at each call


@dataclass(frozen=True)
class Moment:
    """When the power goes, and the seed of what then reaches the medium.

    point: the number, from 1, of the call at which it goes, before that has done anything; 0: none.
    after_us: microseconds after the program's first use of the medium; 0: never.
    """

    point: int = 0
    seed: int = 0
    after_us: int = 0

    def __post_init__(self) -> None:
        if not -(1 << 63) <= self.seed < 1 << 64:  # the library would take one for all of them
            raise PowercutError(f"seed: {self.seed} must be a number of 64 bits")


@dataclass(frozen=True)
class CutSettings:
    """What doesn't change from try to try.

    points: the kinds of calls that are counted.
    names: whether changes of names reach the medium "independent"ly, which POSIX allows, or
        "ordered", as the calls came, and with every fsync, as ext4's journal has them.
    atomic_bytes: what a line of memory is torn into: 8, or 64 for never.
    without: calls that do nothing, each "WHAT SITE".
    site_frames: how many return addresses tell one call site from another.
    """

    points: tuple[str, ...] = POINT_KINDS
    names: Literal["independent", "ordered"] = "independent"
    atomic_bytes: int = 8
    without: tuple[str, ...] = ()
    site_frames: int = 1

    def __post_init__(self) -> None:
        for kind in self.points:
            if kind not in POINT_KINDS:
                raise PowercutError(f"points: {kind} is none of {', '.join(POINT_KINDS)}")
        if self.names not in ("independent", "ordered"):
            raise PowercutError(f"names: {self.names} is neither independent nor ordered")
        if self.atomic_bytes not in (8, 64):
            raise PowercutError(f"atomic_bytes: {self.atomic_bytes} is neither 8 nor 64")
        if not 1 <= self.site_frames <= _MOST_SITE_FRAMES:
            raise PowercutError(
                f"site_frames: {self.site_frames} must be 1 or more, {_MOST_SITE_FRAMES} at most"
            )

    def environment(
        self, roots: Sequence[Path], session: Path, moment: Moment, *, record: bool
    ) -> dict[str, str]:
        return {
            "POWERCUT_UNDER": ":".join(str(root) for root in roots),
            "POWERCUT_SESSION": str(session),
            "POWERCUT_AT": str(moment.point),
            "POWERCUT_AFTER_US": str(moment.after_us),
            "POWERCUT_SEED": str(moment.seed),
            "POWERCUT_RECORD": str(int(record)),
            "POWERCUT_POINTS": ",".join(self.points),
            "POWERCUT_NAMES": self.names,
            "POWERCUT_ATOMIC": str(self.atomic_bytes),
            "POWERCUT_WITHOUT": "\n".join(self.without),
            "POWERCUT_SITE_FRAMES": str(self.site_frames),
        }
