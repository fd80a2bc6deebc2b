"""Saves that are killed at random moments, each in a forked process.

test_checkpoint_io_kills.py kills each format's saves PMEMLAB_KILLS times, by default 20.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from checkpoints import make_format, step_of, uniform_checkpoint

from benchmarks.checkpoint_io.formats import FORMATS
from benchmarks.checkpoint_io.libpmem import PersistentMapping
from benchmarks.checkpoint_io.mapped_file.slots import SlotFile
from benchmarks.checkpoint_io.phases import PhaseClock
from benchmarks.checkpoint_io.publishing import ClockedFile

_SLOW_S = 0.0005
_SLOWED_BYTES = 4096
_WITHIN_A_SAVE_S = 0.02


@dataclass
class Outcome:
    """The number of kills, how many of them came in the middle of a save (`unfinished`), and the
    step of the last complete save (`saves`)."""

    kills: int
    unfinished: int
    saves: int


def kill_saves(
    name: str,
    folder: Path,
    kills: int,
    seed: int,
    *,
    spoil: Callable[[], None] = lambda: None,
) -> Outcome:
    """Kills a saving child process `kills` times. Fails if the checkpoint that can be loaded after
    a kill is older than after the previous kill. spoil: called in the child, to break its saves."""
    moments = random.Random(seed)
    chosen = make_format(name, folder)
    chosen.save(chosen.content_of(uniform_checkpoint(1)), PhaseClock())
    chosen.close()
    last, unfinished = 1, 0
    for _ in range(kills):
        finished, finish = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                spoil()
                _save_for_ever(name, folder, last, finish)
            finally:
                os._exit(1)
        os.close(finish)
        for _ in range(moments.randrange(3)):
            os.read(finished, 1)
        time.sleep(moments.uniform(0.0, _WITHIN_A_SAVE_S))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        os.close(finished)
        assert os.WIFSIGNALED(status), "the saving child failed by itself"
        unfinished += _is_unfinished(name, folder)
        step = step_of(make_format(name, folder).load(PhaseClock()))
        assert step >= last, f"a save was lost: {step} after {last}"
        last = step
    return Outcome(kills, unfinished, last)


def _save_for_ever(name: str, folder: Path, step: int, finish: int) -> None:
    """Saves until it is killed. finish: a file descriptor that gets a byte after each save."""
    _slow_down()
    chosen = FORMATS[name](folder)
    while True:
        step += 1
        chosen.save(chosen.content_of(uniform_checkpoint(step)), PhaseClock())
        os.write(finish, b".")


def _slow_down() -> None:
    """Slows writes and copies down, so that many kills hit them; else most would hit a sync."""
    write, copy = ClockedFile.write, PersistentMapping.copy

    def slow_write(self: ClockedFile, data: bytes | memoryview) -> int:
        if len(data) < _SLOWED_BYTES:
            return write(self, data)
        half = len(data) // 2
        written = write(self, data[:half])
        time.sleep(_SLOW_S)
        return written + write(self, data[half:])

    def slow_copy(self: PersistentMapping, offset: int, source: int, length: int) -> None:
        time.sleep(_SLOW_S)
        copy(self, offset, source, length)

    ClockedFile.write = slow_write  # type: ignore[method-assign]
    PersistentMapping.copy = slow_copy  # type: ignore[method-assign]


def _is_unfinished(name: str, folder: Path) -> bool:
    if name != "mapped":
        return any(folder.rglob("*.unfinished*"))
    with SlotFile(folder / "checkpoint.mapped") as file:
        generations = file.generations()
    # Until the second save, one slot is unpublished because nothing has been written to it yet.
    return None in generations and generations != [1, None]
