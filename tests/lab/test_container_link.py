"""A link to a container's guest. The `docker` command and QEMU are fakes; the relay is real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import fake_docker
import fake_qemu
import pytest
from fake_docker import Engine
from fake_qemu import LIMIT_S

from pmemlab.errors import MachineDiedError, MissingRequirementError
from pmemlab.machines.container.container_link import container_link
from pmemlab.machines.guest.agent import INPUT_WINDOW
from pmemlab.machines.guest.machine import GuestMachine

SIZE = {"rows": 31, "columns": 97}

CONTAINER = Engine().container

# A program that uses the link: it prints the pid of the command that it started, and waits.
USER = """
import signal
from types import SimpleNamespace
from pmemlab.machines.container.container_link import container_link

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup, SIGHUP is ignored
with container_link(SimpleNamespace(name="lab_dram_1", logs=lambda **_: b"")) as link:
    command = link.spawn(["sh", "-c", "echo $$; exec sleep 60"], {}, {"rows": 9, "columns": 9})
    for _, data in command.output():
        print(data.decode(), flush=True)
"""


@pytest.fixture(autouse=True)
def docker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    return fake_docker.install(monkeypatch, tmp_path)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[GuestMachine]:
    with fake_qemu.served(monkeypatch, tmp_path) as machine:
        yield machine


@pytest.mark.usefixtures("machine")
def test_a_command_has_a_terminal_and_its_exit_status_comes_back() -> None:
    with container_link(CONTAINER) as link:
        command = link.spawn(["sh", "-c", "stty size; read line; exit $line"], {}, SIZE)
        output = command.output(LIMIT_S)
        assert next(output)[1] == b"31 97\r\n"
        command.type(b"7\n")
        for _ in output:
            pass
    assert command.returncode == 7


@pytest.mark.usefixtures("machine")
def test_input_and_output_arrive_complete_in_both_directions_at_once() -> None:
    sent = os.urandom(3 * INPUT_WINDOW + 7)
    with container_link(CONTAINER) as link:
        command = link.spawn(["cat"], {}, takes_input=True)

        def send() -> None:
            for start in range(0, len(sent), 1 << 16):
                assert command.send_input(sent[start : start + (1 << 16)])
            command.end_input()

        thread = threading.Thread(target=send)
        thread.start()
        received = b"".join(data for _, data in command.output(LIMIT_S))
        thread.join()
    assert (len(received), received == sent) == (len(sent), True)
    assert command.returncode == 0


@pytest.mark.usefixtures("machine")
def test_a_signal_reaches_the_command() -> None:
    with container_link(CONTAINER) as link:
        command = link.spawn(["sh", "-c", "echo ready; exec sleep 60"], {})
        output = command.output(LIMIT_S)
        assert next(output)[1] == b"ready\n"
        command.signal(signal.SIGINT)
        assert [*output] == []
    assert command.returncode == -signal.SIGINT


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGHUP, signal.SIGTERM])
def test_a_guest_s_command_ends_with_the_process_that_started_it(end: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", USER], stdout=subprocess.PIPE, text=True) as user:
        assert user.stdout is not None
        pid = int(user.stdout.readline())
        assert fake_qemu.is_running(pid)
        user.send_signal(end)
    fake_qemu.wait_until(lambda: not fake_qemu.is_running(pid))


def test_a_guest_s_death_is_reported(machine: GuestMachine) -> None:
    with container_link(CONTAINER) as link:
        output = link.spawn(["sh", "-c", "echo ready; sleep 60"], {}, SIZE).output(LIMIT_S)
        assert next(output)[1] == b"ready\r\n"
        os.kill(machine.pid, signal.SIGKILL)
        with pytest.raises(MachineDiedError, match="went down while a command ran"):
            list(output)


@pytest.mark.usefixtures("machine")
def test_a_container_s_end_is_reported_with_its_log(tmp_path: Path) -> None:
    with container_link(CONTAINER) as link:
        output = link.spawn(["sh", "-c", "echo ready; sleep 60"], {}, SIZE).output(LIMIT_S)
        assert next(output)[1] == b"ready\r\n"
        os.kill(int((tmp_path / "docker.pid").read_text()), signal.SIGKILL)
        with pytest.raises(MachineDiedError, match=r"(?s)lab_dram_1 went down.*the last 40 lines"):
            list(output)


def test_a_container_s_refusal_is_quoted(docker: Path) -> None:
    docker.write_text("#!/bin/sh\necho 'Error: container is paused' >&2; exit 1\n")
    with (
        container_link(CONTAINER) as link,
        pytest.raises(
            MachineDiedError, match=r"(?s)lab_dram_1 .*container is paused.*the last 40 lines"
        ),
    ):
        list(link.spawn(["true"], {}, SIZE).output(LIMIT_S))


def test_a_missing_docker_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MissingRequirementError, match="`docker`"), container_link(CONTAINER):
        pass
