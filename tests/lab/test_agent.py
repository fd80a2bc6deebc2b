"""The frames between a guest's agent and the host."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pmemlab.machines.guest.agent import Unpacker, pack

_FRAMES = st.lists(
    st.tuples(st.integers(0, 255), st.integers(0, (1 << 32) - 1), st.binary(max_size=300))
)


@given(_FRAMES, st.lists(st.integers(1, 50), min_size=1))
def test_frames_arrive_whole_however_they_are_split(
    frames: list[tuple[int, int, bytes]], lengths: list[int]
) -> None:
    stream = b"".join(pack(*frame) for frame in frames)
    unpacker = Unpacker()
    arrived = []
    position = turn = 0
    while position < len(stream):
        length = lengths[turn % len(lengths)]
        arrived += unpacker.feed(stream[position : position + length])
        position += length
        turn += 1
    assert arrived == frames
