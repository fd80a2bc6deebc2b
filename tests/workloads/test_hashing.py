"""The published hashes give their published values."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pmemlab.workloads.hashing import fnv1a_64, splitmix64


def test_fnv1a_gives_the_values_of_rfc_9923() -> None:
    hashes = fnv1a_64([b"", b"a", b"foobar"]).view(np.uint64)
    expected = [0xCBF29CE484222325, 0xAF63DC4C8601EC8C, 0x85944171F73967E8]
    assert hashes.tolist() == expected


@given(st.lists(st.binary(max_size=12), max_size=20))
def test_fnv1a_of_a_batch_is_that_of_each_string(strings: list[bytes]) -> None:
    assert fnv1a_64(strings).view(np.uint64).tolist() == [plain_fnv1a(s) for s in strings]


def plain_fnv1a(string: bytes) -> int:
    value = 0xCBF29CE484222325
    for byte in string:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def test_splitmix64_gives_its_published_sequence() -> None:
    assert splitmix64(1234567, np.arange(5)).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
