"""A save that is killed at any moment leaves the last complete save readable."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from checkpoints import every_format, need_libpmem
from killed_checkpoint_saves import kill_saves

from benchmarks.checkpoint_io import publishing
from benchmarks.checkpoint_io.errors import DamagedCheckpointError, NoCheckpointError
from benchmarks.checkpoint_io.libpmem import PersistentMapping
from benchmarks.checkpoint_io.mapped_file.layout import encode_generation
from benchmarks.checkpoint_io.mapped_file.slots import SlotFile

KILLS = int(os.environ.get("PMEMLAB_KILLS", "20"))
ENOUGH = 300  # kills, enough that at least one reveals a program that loses saves


@pytest.mark.long
@every_format
def test_a_killed_save_leaves_the_one_before(name: str, tmp_path: Path) -> None:
    outcome = kill_saves(name, tmp_path, KILLS, seed=KILLS)
    assert outcome.unfinished > 0, "no kill came in the middle of a save"
    assert outcome.saves > 1, "no save was finished"


@pytest.mark.parametrize("name", ["torch", "safetensors"])
def test_a_format_that_writes_in_place_would_be_found_out(name: str, tmp_path: Path) -> None:
    def write_in_place() -> None:
        @contextmanager
        def in_place(path: Path) -> Iterator[tuple[int, Path]]:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            yield descriptor, path
            os.close(descriptor)

        publishing.unfinished_file = in_place

    with pytest.raises((AssertionError, DamagedCheckpointError, NoCheckpointError)) as caught:
        kill_saves(name, tmp_path, ENOUGH, seed=1, spoil=write_in_place)
    assert "failed by itself" not in str(caught.value)


def test_a_mapped_writer_that_overwrites_the_newest_slot_would_be_found_out(
    tmp_path: Path,
) -> None:
    need_libpmem()

    def take_the_newest() -> None:
        newest = SlotFile.newest

        def other(self: SlotFile) -> tuple[int, int] | None:
            found = newest(self)
            return (1 - found[0], found[1]) if found else None

        SlotFile.newest = other  # type: ignore[method-assign]

    with pytest.raises((AssertionError, NoCheckpointError)) as caught:
        kill_saves("mapped", tmp_path, ENOUGH, seed=1, spoil=take_the_newest)
    assert "failed by itself" not in str(caught.value)


def test_a_mapped_writer_that_publishes_first_would_be_found_out(tmp_path: Path) -> None:
    need_libpmem()

    def publish_first() -> None:
        from benchmarks.checkpoint_io.mapped_file import writer

        fill = writer._fill

        def early(mapping, header, slot, content, generation, clock):  # type: ignore[no-untyped-def]
            store, word = PersistentMapping.store_word, encode_generation(generation)
            PersistentMapping.store_word = (  # type: ignore[method-assign]
                lambda self, offset, value: store(self, offset, value or word)
            )
            fill(mapping, header, slot, content, generation, clock)
            PersistentMapping.store_word = store  # type: ignore[method-assign]

        writer._fill = early

    with pytest.raises(DamagedCheckpointError):
        kill_saves("mapped", tmp_path, ENOUGH, seed=1, spoil=publish_first)
