"""Saves and loads one checkpoint in every arm (a medium with a format), in turns."""

from __future__ import annotations

import gc
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.checkpoint_io.background import BackgroundSaver
from benchmarks.checkpoint_io.checkpoint import Checkpoint, check_same_bits, touch
from benchmarks.checkpoint_io.errors import DifferentBytesError
from benchmarks.checkpoint_io.formats import FILE_FORMATS, FORMATS, MAPPED_FORMATS, Format
from benchmarks.checkpoint_io.medium import Medium
from benchmarks.checkpoint_io.pacing import UsedTime
from benchmarks.checkpoint_io.page_cache import (
    Eviction,
    FilePart,
    evict,
    resident_fraction,
)
from benchmarks.checkpoint_io.phases import Phase, PhaseClock

__all__ = ["ArmResult", "LoadTiming", "SaveTiming", "formats_on", "measure_arms"]

Progress = Callable[[str], None]
"""Called with a description before each save and load."""


@dataclass(frozen=True)
class SaveTiming:
    """A save's times. seconds: from the call until the medium has everything. stall_seconds: how
    long training waits. phases: parts of `seconds`; a format may have several phases in one.
    paced_seconds: the part of `seconds` that was waited because the medium's device would take
    longer.
    """

    seconds: float
    stall_seconds: float
    phases: dict[Phase, float]
    paced_seconds: float = 0.0


@dataclass(frozen=True)
class LoadTiming:
    """A load's times. seconds: until every byte was touched, the sum of `phases`. resident_before:
    share of the files' pages in the page cache at the start; for a paced medium, the share that
    would have been there. paced_seconds: as in SaveTiming.
    """

    seconds: float
    phases: dict[Phase, float]
    resident_before: float
    paced_seconds: float = 0.0


@dataclass
class ArmResult:
    """The results of an arm. tensor_bytes: saved bytes, which rates count. file_bytes: bytes on the
    medium. device: the device that the medium was paced as; None: not paced.
    """

    model: str
    medium: str
    format: str
    tensor_bytes: int
    device: str | None = None
    file_bytes: int = 0
    notices_flipped_bits: bool = False
    notes: dict[str, object] = field(default_factory=dict)
    saves: list[SaveTiming] = field(default_factory=list)
    evicted_loads: list[LoadTiming] = field(default_factory=list)
    cached_loads: list[LoadTiming] = field(default_factory=list)

    @property
    def save_bytes_per_s(self) -> float:
        return self.tensor_bytes / statistics.median(save.seconds for save in self.saves)

    @property
    def cold_bytes_per_s(self) -> float | None:
        """Cold loads' median rate; None if a page stayed in the page cache, as then no load was
        cold.
        """
        if any(load.resident_before > 0 for load in self.evicted_loads):
            return None
        return self.tensor_bytes / statistics.median(load.seconds for load in self.evicted_loads)

    @property
    def warm_bytes_per_s(self) -> float:
        """The median rate of loads that follow a load; of all loads if caches can't be dropped."""
        loads = list(self.cached_loads)
        if self.cold_bytes_per_s is None:
            loads += self.evicted_loads
        return self.tensor_bytes / statistics.median(load.seconds for load in loads)

    @property
    def stall_seconds(self) -> float:
        return statistics.median(save.stall_seconds for save in self.saves)

    def phase_seconds(self, phase: Phase) -> float | None:
        """Returns a phase's median over saves or loads; None if the format doesn't have it as a
        phase of its own.
        """
        of_saves = [save.phases for save in self.saves]
        of_loads = [load.phases for load in (*self.evicted_loads, *self.cached_loads)]
        found = [phases[phase] for phases in (*of_saves, *of_loads) if phase in phases]
        return statistics.median(found) if found else None

    def as_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "save_bytes_per_s": self.save_bytes_per_s,
            "stall_seconds": self.stall_seconds,
            "cold_bytes_per_s": self.cold_bytes_per_s,
            "warm_bytes_per_s": self.warm_bytes_per_s,
        }


def formats_on(medium: Medium) -> list[str]:
    """Returns the names of the formats that suit a medium of this kind."""
    if medium.paced_as is not None and medium.kind == "dax":
        return list(FORMATS)  # its mount isn't a real one, so no kind of use was given
    return list(MAPPED_FORMATS if medium.kind == "mapped" else FILE_FORMATS)


def measure_arms(
    model: str,
    checkpoint: Checkpoint,
    arms: Sequence[tuple[Medium, str]],
    *,
    repeats: int,
    eviction: Eviction,
    background: bool = False,
    progress: Progress = lambda _what: None,
) -> list[ArmResult]:
    """Save and load `checkpoint` in every arm, `repeats` times in turns, so that a disturbance of
    the computer doesn't affect one arm alone.

    Each turn saves, loads with the files' pages dropped from the page cache, and loads again; each
    loaded content is compared. On a paced medium, whose files stay in memory, the first load waits
    instead as if the pages had been dropped. All files lie in a temporary folder on each medium.

    Raises DifferentBytesError, which names the arm, if an arm doesn't return what was saved.
    """
    with ExitStack() as stack:
        running = [
            stack.enter_context(_arm(model, checkpoint, medium, name, eviction, background))
            for medium, name in arms
        ]
        for number in range(1, repeats + 1):
            for arm in running:
                arm.measure_once(f"{number} of {repeats}", progress)
        return [arm.result for arm in running]


@contextmanager
def _arm(
    model: str,
    checkpoint: Checkpoint,
    medium: Medium,
    format_name: str,
    eviction: Eviction,
    background: bool,
) -> Iterator[_Arm]:
    folder = Path(tempfile.mkdtemp(dir=medium.path, prefix="pmemlab-checkpoint-"))
    try:
        with closing(FORMATS[format_name](folder)) as chosen:
            content = chosen.content_of(checkpoint)
            device = medium.paced_as.name if medium.paced_as else None
            result = ArmResult(model, medium.name, format_name, _payload(content), device)
            yield _Arm(chosen, medium, content, result, eviction, background)
    finally:
        shutil.rmtree(folder)


def _payload(content: Checkpoint) -> int:
    """Returns the bytes of the user's tensors; a table's keys belong to the format."""
    return sum(t.nbytes for name, t in content.tensors.items() if name != "keys")


class _Arm:
    def __init__(
        self,
        chosen: Format,
        medium: Medium,
        content: Checkpoint,
        result: ArmResult,
        eviction: Eviction,
        background: bool,
    ) -> None:
        self.result = result
        self._format = chosen
        self._paced_as = medium.paced_as
        self._paced_s = 0.0
        self._content = content
        self._eviction = eviction
        self._clock = PhaseClock()
        in_background = background and chosen.saves_content_as_given
        self._saver = BackgroundSaver(self._save_now) if in_background else None

    def measure_once(self, repetition: str, progress: Progress) -> None:
        result = self.result
        name = f"{result.model}, {result.format} on {result.medium}"
        progress(f"{name}: save {repetition}")
        result.saves.append(self._save())
        parts = self._format.parts()  # called once: it may read some of the parts
        result.file_bytes = sum(part.length for part in parts)
        result.notes = self._format.notes()
        result.notices_flipped_bits = self._format.notices_flipped_bits
        progress(f"{name}: cold load {repetition}")
        if self._paced_as is None:
            evict(parts, self._eviction)
        result.evicted_loads.append(self._load(name, parts, cached=False))
        progress(f"{name}: warm load {repetition}")
        result.cached_loads.append(self._load(name, parts, cached=True))

    def _save(self) -> SaveTiming:
        self._clock = PhaseClock()
        started = time.perf_counter()
        if self._saver is None:
            self._save_now(self._content)
            stalled = ended = time.perf_counter()
        else:
            self._saver.save(self._content)
            stalled = time.perf_counter()
            self._saver.wait()
            ended = time.perf_counter()
        return SaveTiming(ended - started, stalled - started, self._clock.seconds, self._paced_s)

    def _save_now(self, content: Checkpoint) -> None:
        began = UsedTime.now()
        self._format.save(content, self._clock)
        if self._paced_as is not None:
            self._paced_s = self._paced_as.wait_for_save(
                sum(part.length for part in self._format.parts()),
                began,
                self._clock,
                is_sync_separate=self._format.separates_sync,
            )

    def _load(self, arm: str, parts: Sequence[FilePart], *, cached: bool) -> LoadTiming:
        clock = PhaseClock()
        paced_as = self._paced_as
        resident = resident_fraction(parts)
        if paced_as is not None:
            resident = 1.0 if cached and paced_as.has_page_cache else 0.0
        loaded = self._format.load(clock)
        with clock("touch"):
            touch(loaded)
        paced_s = 0.0
        if paced_as is not None and resident == 0:
            # Later reads of the same bytes come from the page cache, if there is one.
            reads = 1 if paced_as.has_page_cache else self._format.reads_per_byte
            paced_s = paced_as.wait_for_load(reads * sum(part.length for part in parts), clock)
        try:
            check_same_bits(loaded, self._content)
        except DifferentBytesError as error:
            raise DifferentBytesError(f"{arm}: {error}") from error
        del loaded
        gc.collect()  # a living mapping would keep pages in the cache, and a slot in use
        return LoadTiming(sum(clock.seconds.values()), clock.seconds, resident, paced_s)
