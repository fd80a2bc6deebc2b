"""What a command must be, on machines of every kind. QEMU is played here."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import played_qemu
import pytest

from pmemlab.machines.guest.machine import GuestMachine, open_guest_machine
from pmemlab.machines.process import ProcessMachine, open_process_machine
from pmemlab.topology import Topology

PLAIN = Topology("plain", "this computer", {"kernel": os.uname().release})


@pytest.fixture(params=["process", "guest"])
def machine(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[ProcessMachine | GuestMachine]:
    if request.param == "process":
        with open_process_machine(PLAIN) as process:
            yield process
        return
    played_qemu.play(monkeypatch, tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with open_guest_machine(played_qemu.TRUE_HERE) as guest:
        yield guest


def test_a_command_that_none_can_run_is_refused_and_the_machine_lives(
    machine: ProcessMachine | GuestMachine,
) -> None:
    refused: list[tuple[Any, Any, type[Exception], str]] = [
        ([], {}, ValueError, "argv is empty"),
        ("echo a", {}, TypeError, "argv must be a list"),
        (None, {}, TypeError, "argv must be a list"),
        (["echo", 1], {}, TypeError, r"argv\[1\] must be text or a path, not 1"),
        ([b"echo"], {}, TypeError, r"argv\[0\] must be text or a path"),
        (["echo", "a\0b"], {}, ValueError, r"argv\[1\] must have no NUL"),
        (["echo"], {"A": 1}, TypeError, r"env\['A'\] must be text or a path, not 1"),
        (["echo"], {"A": "\0"}, ValueError, r"env\['A'\] must have no NUL"),
        (["echo"], {"A=B": "1"}, ValueError, "'A=B' is no variable's name"),
        (["echo"], {1: "1"}, TypeError, "1 is no variable's name"),
        (["echo"], ["A"], TypeError, "env must map names"),
    ]
    for argv, env, kind, words in refused:
        with pytest.raises(kind, match=words):
            machine.run(argv, env)
    assert machine.run(["echo", "alive"]).stdout == "alive\n"


def test_paths_are_taken_as_text(machine: ProcessMachine | GuestMachine, tmp_path: Path) -> None:
    done = machine.run(["sh", "-c", "echo $1 $A", "sh", tmp_path], {"A": tmp_path})
    assert done.stdout == f"{tmp_path} {tmp_path}\n"
