"""The command line. QEMU is played where a guest is wanted."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import played_qemu
import pytest

from pmemlab.cli import main
from pmemlab.errors import MissingRequirementError
from pmemlab.guest.control import ControlServer
from pmemlab.machines.guest import open_guest_machine


@pytest.fixture(autouse=True)
def _signals_as_they_were() -> Iterator[None]:
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """The state folder of a guest that is served."""
    played_qemu.play(monkeypatch, tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with open_guest_machine(played_qemu.TRUE_HERE) as machine, ControlServer(tmp_path, machine):
        yield str(tmp_path)


def test_exec_gives_streams_and_status(
    served: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    script = "printf 'o\\377'; printf e >&2; exit 9"
    assert main(["exec", "--state-dir", served, "--", "sh", "-c", script]) == 9
    assert capfdbinary.readouterr() == (b"o\xff", b"e")


def test_exec_passes_the_environment(served: str, capfd: pytest.CaptureFixture[str]) -> None:
    argv = ["exec", "--state-dir", served, "--env=ONE=a=b", "--", "sh", "-c", "echo $ONE"]
    assert main(argv) == 0
    assert capfd.readouterr().out == "a=b\n"


def test_exec_gives_a_signal_as_shells_do(served: str) -> None:
    assert main(["exec", "--state-dir", served, "--", "sh", "-c", "kill -15 $$"]) == 143


def test_exec_tells_a_lab_error_from_a_command_s_failure(
    served: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["exec", "--state-dir", served, "--", "no-such-program"]) == 125
    assert capfd.readouterr().err.startswith("pmemlab: ")
    assert main(["exec", "--state-dir", served, "--timeout=0.3", "--", "sleep", "60"]) == 125


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["exec", "dram"], "give the command after `--`"),
        (["exec", "--", "true"], "give either a machine or --state-dir"),
        (["exec", "dram", "--env", "ONE", "--", "true"], "must be NAME=VALUE"),
        (["exec", "--state-dir", "/no/such", "--", "true"], "/no/such: no machine is served there"),
        (["show", "dramm"], "there is no 'dramm'"),
        (["up", "dramm"], "there is no 'dramm'"),
        (["serve", "dramm", "--state-dir", "/tmp"], "there is no 'dramm'"),
    ],
)
def test_a_wrong_use_is_told_in_a_line(
    argv: list[str], told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == (125 if argv[0] == "exec" else 2)
    assert told in capfd.readouterr().err


def test_up_without_docker_says_where_it_was_looked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-docker.sock")
    assert main(["up"]) == 2
    told = capfd.readouterr().err
    assert told.startswith(f"pmemlab: no Docker engine answers at DOCKER_HOST, unix://{tmp_path}")
    assert told.count("\n") == 1


def test_show_prints_what_the_guide_s_commands_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    played_qemu.play(monkeypatch, tmp_path)
    region = '[{"dev": "region7", "size": 4096}]'
    programs = {
        "ndctl": f"[ \"$*\" = 'list -NR' ] && echo '{region}'",
        "numactl": 'echo "numactl with $*"',
    }
    for name, script in programs.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setattr("pmemlab.machines.guest.PROGRAM_PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def no_docker() -> frozenset[str]:
        raise MissingRequirementError("no Docker engine answers", "make docker")

    monkeypatch.setattr("pmemlab.machines.container.running_machines", no_docker)
    topology = tmp_path / "played.yaml"
    kernel = played_qemu.TRUE_HERE.proof["kernel"]
    topology.write_text(f"name: played\nsummary: this computer\nproof: {{kernel: '{kernel}'}}\n")
    assert main(["show", str(topology)]) == 0
    out = capfd.readouterr().out
    assert region in out
    assert "numactl with -H" in out
    assert "PMemModule" in out


def test_run_passes_its_arguments_to_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[str]] = []

    def pytest_main(argv: list[str]) -> int:
        given.append(argv)
        return 5

    monkeypatch.setattr(pytest, "main", pytest_main)
    assert main(["run", "--pmemlab-topology", "dram", "-x"]) == 5
    assert given[0][1].endswith("/scenarios")
    assert given[0][2:] == ["--pmemlab-topology", "dram", "-x"]
