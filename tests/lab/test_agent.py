"""The frames between a guest's agent and the host, and an agent in its own process."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_qemu import LIMIT_S
from hypothesis import given
from hypothesis import strategies as st

from pmemlab.errors import LabError
from pmemlab.machines.guest.agent import RESIZE, SIGNAL, SPAWN, Unpacker, pack
from pmemlab.machines.guest.link import Link

LAB = Path(__file__).parents[2] / "lab"

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


@pytest.fixture
def slow_link(monkeypatch: pytest.MonkeyPatch) -> Iterator[Link]:
    """A link to an agent over a port that accepts only a few kilobytes per millisecond."""

    def slow_feed(unpacker: Unpacker, data: bytes) -> list[tuple[int, int, bytes]]:
        time.sleep(0.001)
        return feed(unpacker, data)

    feed = Unpacker.feed
    monkeypatch.setattr(Unpacker, "feed", slow_feed)
    program = "from pmemlab.machines.guest.agent import Agent; Agent(0).serve()"
    ours, theirs = socket.socketpair()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=theirs.fileno(), env={"PYTHONPATH": str(LAB)}
    ) as agent:
        theirs.close()
        link = Link(ours, LabError)
        try:
            yield link
        finally:
            link.close()
            agent.kill()


def test_a_grandchild_that_keeps_writing_does_not_delay_the_command_s_end(slow_link: Link) -> None:
    # The pipe fills up again while the agent writes to the port, so the agent never sees it empty.
    command = slow_link.spawn(["sh", "-c", "yes & sleep 0.2; exit 3"], {"PATH": "/usr/bin:/bin"})
    for _ in command.output(timeout=LIMIT_S):
        pass
    assert command.returncode == 3
    assert slow_link.run(["/bin/echo", "alive"], {}, timeout=LIMIT_S).stdout == "alive\n"


@pytest.mark.parametrize(
    "request_",
    [
        {"argv": [], "env": {}},
        {"argv": ["true"], "env": {"A": 1}},
        {"argv": [1], "env": {}},
        {"argv": None, "env": {}},
        {"argv": ["true"], "env": {}, "terminal": {}},
        {"env": {}},
        [],
    ],
)
def test_the_agent_reports_a_command_that_cannot_be_run_and_lives_on(
    slow_link: Link, request_: object
) -> None:
    command = slow_link._begin(SPAWN, json.dumps(request_).encode())
    with pytest.raises(LabError, match="can't be run"):
        list(command.output(timeout=LIMIT_S))
    assert slow_link.run(["/bin/echo", "alive"], {}, timeout=LIMIT_S).stdout == "alive\n"


def test_the_agent_survives_requests_that_it_cannot_parse(slow_link: Link) -> None:
    command = slow_link.spawn(["/bin/cat"], {}, {"rows": 24, "columns": 80})
    for kind in (SIGNAL, RESIZE):
        slow_link._send(pack(kind, command._channel, b"{}"))
    command.signal(4095)
    slow_link._send(pack(SPAWN, 4095, b"no JSON"))
    assert slow_link.run(["/bin/echo", "alive"], {}, timeout=LIMIT_S).stdout == "alive\n"
    command.kill()
