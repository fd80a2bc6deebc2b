"""A variable's name works, with all files where they belong, or is refused at once."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_storage import IN_MEMORY, MIB, skip_without_library, variable_with_options
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import embstore as es
from embstore.errors import InvalidArgumentError
from embstore.options import TIER_KINDS

IDS = np.arange(400)
GRADS = np.ones((IDS.size, 3), np.float32)

STORAGE: dict[str, tuple[es.StorageType, dict[str, Any]]] = {
    "PMEM_LIBPMEM": (es.StorageType.PMEM_LIBPMEM, {}),
    "SSDHASH": (
        es.StorageType.DRAM_SSDHASH,
        {"ssdhash_option": es.SSDHashOption(keep_files=True, file_bytes=64 << 10)},
    ),
    "LEVELDB": (es.StorageType.DRAM_LEVELDB, {}),
    "pool": (es.StorageType.DRAM_PMEM_SSDHASH, {"durability": "checkpoint"}),
}

# Text that means something in a path, and the endings of the engine's file names.
PIECES = [".", "..", "/", "%", "%2E", "=", "~", " ", "\n", "a", "A", "é", "\ud800", "\0"]
ENDINGS = [".part0", ".part1", ".pool", ".ssdhash", ".leveldb", ".lock", ".new"]
ENDINGS += [".begun-at", ".listed-at"]
NAMES = st.one_of(
    st.lists(st.sampled_from(PIECES + ENDINGS), min_size=1, max_size=4).map("".join),
    st.text(min_size=1, max_size=30),
    st.integers(60, 1100).map("n".__mul__),
    st.integers(20, 400).map("é/".__mul__),
)


def is_name(text: str) -> bool:
    return "\0" not in text and len(text.encode(errors="replace")) <= 1000 and is_utf8(text)


def is_utf8(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def option(storage: str, directory: Path) -> es.StorageOption:
    kind, options = STORAGE[storage]
    tiers = len(TIER_KINDS[kind])
    return es.StorageOption(
        kind,
        [None] * (tiers > 1) + [directory] * max(1, tiers - 1),
        [50 * 32] * (tiers > 1) + [4 * MIB] * max(1, tiers - 1),
        **options,
    )


def make(name: str, storage: es.StorageOption, partition_num: int) -> es.EmbeddingVariable:
    return variable_with_options(
        name,
        3,
        storage,
        optimizer=es.optimizers.Adagrad(0.1),
        partition_num=partition_num,
        restores=True,
    )


def use(variable: es.EmbeddingVariable, times: int) -> None:
    for _ in range(times):
        variable.apply_gradients(IDS, GRADS)
    variable.drain()


@pytest.mark.parametrize("storage", STORAGE)
@settings(max_examples=15, deadline=None)
@given(name=NAMES, other=NAMES, parts=st.integers(1, 2), other_parts=st.integers(1, 2))
@example(name=".", other="..", parts=1, other_parts=1)
@example(name="deep/column 1", other="deep_column 1", parts=1, other_parts=1)
@example(name="x", other="x.part0", parts=2, other_parts=1)
@example(name="x", other="x%2Epart0", parts=2, other_parts=1)
@example(name="x.part0", other="x%2Epart0", parts=1, other_parts=1)
@example(name="x.part0", other="x.part1", parts=1, other_parts=2)
@example(name="n" * 300, other="n" * 301, parts=2, other_parts=2)
@example(name="\ud800", other="?", parts=1, other_parts=1)
@example(name="/etc/passwd", other="../up", parts=1, other_parts=1)
@example(name="x.pool", other="x.pool.pool", parts=1, other_parts=2)
@example(name="x.ssdhash", other="x", parts=2, other_parts=1)
def test_a_name_that_is_accepted_has_files_of_its_own_inside_its_storage_path(
    storage: str, name: str, other: str, parts: int, other_parts: int
) -> None:
    skip_without_library(STORAGE[storage][0])
    assume(name != other)
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as around:
        place, saves = Path(around, "rows"), Path(around, "saves")
        saves.mkdir()
        where = option(storage, place)
        if not is_name(name):
            with pytest.raises(InvalidArgumentError, match=r"^name must be"):
                make(name, where, parts)
            assert not place.exists()
            return
        variable = make(name, where, parts)
        use(variable, 2)
        es.save(saves / "one", [variable], 2)
        if where.durability:
            es.persist([variable], saves / "two", global_step=2)
        if is_name(other):
            beside = make(other, where, other_parts)
            use(beside, 1)
            es.save(saves / "beside", [variable, beside], 3)
            if where.durability:
                es.persist([beside], saves / "three", global_step=1)
            assert (beside.get_frequency(IDS) == 1).all()
            beside.close()
        assert (variable.get_frequency(IDS) == 2).all()
        variable.close()
        assert set(Path(around).iterdir()) <= {place, saves}

        again = make(name, where, parts)
        if where.durability:
            assert es.restore_persisted([again], saves / "two") == 2
        elif not where.keeps_rows:
            assert es.restore(saves / "one", [again]) == 2
        assert (again.get_frequency(IDS) == 2).all()
        again.close()


REFUSED = [
    ("", "isn't empty"),
    (3, "a string"),
    ("a\0b", "without NUL"),
    ("\ud800", "UTF-8"),
    ("n" * 1001, "at most 1000 bytes of UTF-8, got 1001"),
    ("é" * 501, "at most 1000 bytes of UTF-8, got 1002"),
]


TAKERS: dict[str, Callable[[Any], object]] = {
    "get_embedding_variable": lambda name: es.get_embedding_variable(name, 3),
    "shards": lambda name: es.get_embedding_variable(name, 3, shards=2),
}


@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize(("name", "message"), REFUSED)
def test_an_invalid_name_is_refused_by_every_call_that_takes_one(
    name: Any, message: str, taker: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^name must be .*{message}"):
        TAKERS[taker](name)
