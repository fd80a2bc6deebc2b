"""All processes below a process are found and ended, orphans and stopped ones too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from embstore.server.process_tree import Process, descendants, end

# A shell that leaves two orphans, one of which is stopped and one of which ignores SIGTERM.
PROGRAM = """
import os, subprocess, sys, time
from embstore.server import process_tree

process_tree.adopt_orphans()
subprocess.run(["sh", "-c", "sleep 600 & kill -STOP $!; (trap '' TERM; exec sleep 600) & exit"])
before = process_tree.descendants(os.getpid())
left = process_tree.end(before, 0.5)
print(len(before), len(left), [process.is_there for process in before])
"""


def test_orphans_are_found_and_ended_even_if_stopped_or_ignoring_sigterm() -> None:
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )
    assert told.stdout.split(maxsplit=2) == ["2", "0", "[False, False]\n"], told.stderr


def test_a_later_process_with_the_same_id_is_left_alone() -> None:
    with subprocess.Popen(["sleep", "600"]) as child:
        (found,) = [process for process in descendants(os.getpid()) if process.number == child.pid]
        earlier = Process(found.number, found.started_ticks - 1)
        assert end([earlier], 0.2) == set()
        assert child.poll() is None
        assert end([found], 5) == set()
        assert child.wait() == -signal.SIGTERM
