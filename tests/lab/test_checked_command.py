"""The rules for commands and their results, on every kind of machine. The guests are fakes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import fake_docker
import fake_qemu
import pytest

from pmemlab.errors import LabError, MachineDiedError
from pmemlab.machines.container.machine import ContainerMachine
from pmemlab.machines.guest.machine import GuestMachine, open_guest_machine
from pmemlab.machines.process import ProcessMachine, open_process_machine
from pmemlab.topology import Topology

OwnMachine: TypeAlias = ProcessMachine | GuestMachine | ContainerMachine

PLAIN = Topology("plain", "this computer", {"kernel": os.uname().release})


@pytest.fixture(params=["process", "guest", "container"])
def machine(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[OwnMachine]:
    """A running machine of each kind."""
    if request.param == "process":
        with open_process_machine(PLAIN) as process:
            yield process
        return
    if request.param == "container":
        fake_docker.install(monkeypatch, tmp_path)
        with (
            fake_qemu.served(monkeypatch, tmp_path),
            fake_docker.machine_of(fake_docker.Engine()) as container,
        ):
            yield container
        return
    fake_qemu.install(monkeypatch, tmp_path)
    with open_guest_machine(fake_qemu.THIS_COMPUTER) as guest:
        yield guest


def test_an_invalid_command_is_refused_and_the_machine_lives_on(
    machine: OwnMachine,
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


def test_paths_are_taken_as_text(machine: OwnMachine, tmp_path: Path) -> None:
    done = machine.run(["sh", "-c", "echo $1 $A", "sh", tmp_path], {"A": tmp_path})
    assert done.stdout == f"{tmp_path} {tmp_path}\n"


def test_a_missing_program_is_named(machine: OwnMachine) -> None:
    with pytest.raises(LabError, match="no-such-program"):
        machine.run(["no-such-program"])


def test_output_and_status_come_back_exactly(machine: OwnMachine) -> None:
    script = "printf 'a\\n\\n b\\377'; printf 'é\\377' >&2; exit 7"
    result = machine.run(["sh", "-c", script])
    assert result.returncode == 7
    assert result.stdout.encode(errors="surrogateescape") == b"a\n\n b\xff"
    assert result.stderr.encode(errors="surrogateescape") == "é".encode() + b"\xff"


def test_a_child_that_keeps_the_pipes_open_does_not_delay_the_command_s_end(
    machine: OwnMachine,
) -> None:
    started = time.monotonic()
    script = "sleep 60 & echo $!; echo err >&2; exit 3"
    result = machine.run(["sh", "-c", script], timeout=30)
    assert time.monotonic() - started < 30
    assert (result.returncode, result.stderr) == (3, "err\n")
    assert machine.run(["kill", result.stdout.strip()]).returncode == 0, "the child goes on"


def test_on_line_gets_each_line_as_it_comes_and_may_cut_the_power(machine: OwnMachine) -> None:
    lines: list[str] = []

    def on_line(line: str) -> None:
        lines.append(line)
        if line == "saved":
            machine.power_cut()

    started = time.monotonic()
    script = "echo begun >&2; sleep 0.2; printf 'half\\nsav'; sleep 0.2; echo ed; sleep 60"
    with pytest.raises(MachineDiedError, match="has had its power cut"):
        machine.run(["sh", "-c", script], on_line=on_line)
    assert lines == ["begun", "half", "saved"]
    assert time.monotonic() - started < 30


def test_a_command_that_ends_while_the_power_is_cut_raises(machine: OwnMachine) -> None:
    with pytest.raises(MachineDiedError, match="has had its power cut"):
        machine.run(["echo", "saved"], on_line=lambda _: machine.power_cut())


def test_only_a_machine_without_power_can_be_booted_again(machine: OwnMachine) -> None:
    with pytest.raises(LabError, match="has power; cut it first"):
        machine.power_on()
    assert machine.run(["true"]).returncode == 0
    machine.stop()
    with pytest.raises(MachineDiedError, match="is stopped"):
        machine.power_on()


def test_a_machine_that_is_stopped_without_power_stays_off(machine: OwnMachine) -> None:
    machine.power_cut()
    machine.stop()
    for use in (machine.power_on, lambda: machine.run(["true"])):
        with pytest.raises(MachineDiedError, match="is stopped"):
            use()
