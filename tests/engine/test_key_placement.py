"""Keys go to partitions by their hash, which never changes."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from engine_storage import MakeVariable
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from plain_partition import partition_hash, partition_of, partitions_of

from embstore import _core
from embstore.errors import InvalidArgumentError

INT64 = np.iinfo(np.int64)
KEYS = st.one_of(st.integers(-3, 3), st.integers(int(INT64.min), int(INT64.max)))

Keys = NDArray[np.int64]


def placed(keys: Keys, partitions: int) -> Keys:
    """Returns the partition of each key, as the engine has it."""
    positions, begins = _core.keys_by_partition(keys, partitions)
    where = np.full(keys.size, -1)
    for partition in range(partitions):
        where[positions[begins[partition] : begins[partition + 1]]] = partition
    return where


@given(st.lists(KEYS), st.integers(1, 4096))
def test_each_key_lies_in_the_one_partition_that_the_format_says(
    keys: list[int], partitions: int
) -> None:
    batch = np.array(keys, np.int64)
    positions, begins = _core.keys_by_partition(batch, partitions)
    assert sorted(positions.tolist()) == list(range(len(keys)))  # each once
    assert (begins[0], begins[-1], len(begins)) == (0, len(keys), partitions + 1)
    for partition in range(partitions):
        part = positions[begins[partition] : begins[partition + 1]].tolist()
        assert part == [
            i for i, key in enumerate(keys) if partition_of(key, partitions) == partition
        ]


def test_the_formats_examples_hold() -> None:
    # Other programs' SplitMix64 gives these values from these states, for example
    # java.util.SplittableRandom.
    assert partition_hash(0) == 0xE220A8397B1DCDAF
    assert partition_hash(1234567) == 6457827717110365317
    keys = np.array([0, 1, -1, 1234567, INT64.min, INT64.max])
    for partitions, wanted in EXAMPLES.items():
        assert placed(keys, partitions).tolist() == wanted
        assert partitions_of(keys, partitions).tolist() == wanted


# The examples of engine/FORMAT.md. They must never change, or kept rows can't be found.
EXAMPLES = {
    1: [0, 0, 0, 0, 0, 0],
    2: [1, 1, 1, 0, 0, 0],
    3: [2, 1, 2, 1, 0, 0],
    5: [4, 2, 4, 1, 1, 0],
    4096: [3618, 2320, 3661, 1433, 1153, 678],
}


def zipf(random: np.random.Generator) -> Keys:
    drawn = np.unique(random.zipf(1.05, 400_000))
    return drawn[drawn > 0][:40_000]  # without NumPy's overflows


STREAMS: dict[str, Callable[[np.random.Generator], Keys]] = {
    "sequential": lambda _: np.arange(40_000),
    "negative": lambda _: -np.arange(40_000),
    "even": lambda _: np.arange(40_000) * 2,
    "of stride 60": lambda _: np.arange(40_000) * 60,
    "of stride 2^32": lambda _: np.arange(40_000) << 32,
    "of 100 fields, beginning a power of two apart": lambda _: (
        (np.arange(40_000) % 100 << 40) + np.arange(40_000) // 100
    ),
    "random": lambda random: random.integers(INT64.min, INT64.max, 40_000),
    "Zipf": zipf,
}


def imbalance(where: Keys, partitions: int) -> float:
    """Returns the chi-square of the partitions' sizes, in standard deviations above its mean."""
    sizes = np.bincount(where, minlength=partitions)
    expected = where.size / partitions
    freedom = partitions - 1
    chi_square = float(((sizes - expected) ** 2).sum() / expected)
    return (chi_square - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("partitions", [2, 3, 4, 5, 8, 60, 256])
def test_every_stream_of_keys_is_spread_evenly(stream: str, partitions: int) -> None:
    keys = STREAMS[stream](np.random.default_rng(1)).astype(np.int64)
    assert keys.size > 10_000
    assert imbalance(placed(keys, partitions), partitions) < 6


def test_a_remainder_in_place_of_the_hash_fails_the_bound() -> None:
    random = np.random.default_rng(1)
    for stream in ("even", "of stride 60", "of stride 2^32"):
        assert imbalance(STREAMS[stream](random) % 4, 4) > 100


def test_a_variables_rows_are_spread_over_its_partitions(make_variable: MakeVariable) -> None:
    var = make_variable(partition_num=4)
    keys = np.arange(-20_000, 20_000, 4)
    var.apply_gradients(keys, np.ones((keys.size, 3), np.float32))
    tiers = var.stats()["tiers"]
    assert [tier["partition"] for tier in tiers] == [0, 1, 2, 3]
    wanted = np.bincount(partitions_of(keys, 4), minlength=4)
    assert [tier["rows"] for tier in tiers] == wanted.tolist()
    assert wanted.max() < 1.1 * wanted.min()


@pytest.mark.parametrize("partitions", [0, 1 << 32])
def test_an_impossible_number_of_partitions_is_refused(partitions: int) -> None:
    with pytest.raises(InvalidArgumentError, match="partition_count: must be 1"):
        _core.keys_by_partition(np.arange(3), partitions)
