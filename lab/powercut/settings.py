"""The settings of power cuts, which the library gets in environment variables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from powercut.errors import PowercutError

__all__ = ["POINT_KINDS", "CutSettings", "Moment"]

POINT_KINDS = ("drain", "sync", "name", "write", "exit")

_MAX_SITE_FRAMES = 1000  # reserved by the library at each call


@dataclass(frozen=True)
class Moment:
    """A moment for a power cut, and the seed of the choice of what reaches the medium.

    point: the number, from 1, of the call at whose start the power goes; 0: at no call.
    after_us: microseconds after the program's first use of the medium; 0: never.
    """

    point: int = 0
    seed: int = 0
    after_us: int = 0

    def __post_init__(self) -> None:
        if not -(1 << 63) <= self.seed < 1 << 64:  # the library would clamp larger seeds
            raise PowercutError(f"seed: {self.seed} must be a number of 64 bits")


@dataclass(frozen=True)
class CutSettings:
    """The settings that are the same for all tries.

    points: the kinds of calls that are counted.
    names: "independent": changes of names reach the medium in any order, as POSIX allows;
        "ordered": in the order of the calls, and with every fsync, as in ext4's journal.
    atomic_bytes: the parts that a line of memory may be torn into: 8, or 64 for never.
    without: calls to take out, each "WHAT SITE".
    site_frames: number of return addresses that identify a call site.
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
        if not 1 <= self.site_frames <= _MAX_SITE_FRAMES:
            raise PowercutError(
                f"site_frames: {self.site_frames} must be 1 or more, {_MAX_SITE_FRAMES} at most"
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
