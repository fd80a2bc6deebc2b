"""The kind of machine that scenarios get by default, and the reason that is given for it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import pytest

import pmemlab.machines.container.machine
import pmemlab.machines.guest.machine
from pmemlab.errors import MissingRequirementError
from pmemlab.machines.choice import Choice, MachineChooser
from pmemlab.topology import Topology, load_topology, topology_names


@dataclass
class Computer:
    """The means of a computer to run machines, as a test sets them."""

    has_docker: bool = True
    has_image: bool = True
    running: frozenset[str] = frozenset()
    missing_for_guest: list[MissingRequirementError] = field(default_factory=list)

    def choose(self, topology: Topology | None = None) -> Choice:
        root = Path(__file__).parents[2]
        return MachineChooser("auto", root).choose(topology or load_topology("fsdax"))


@pytest.fixture
def computer(monkeypatch: pytest.MonkeyPatch) -> Computer:
    computer = Computer()

    def connect() -> None:
        if not computer.has_docker:
            raise MissingRequirementError("no Docker engine answers", "make docker")

    def require_image(*_: object) -> str:
        if not computer.has_image:
            raise MissingRequirementError("there is no image", "make lab-up")
        return "image"

    monkeypatch.setattr(pmemlab.machines.container.machine, "connect", connect)
    monkeypatch.setattr(pmemlab.machines.container.machine, "require_image", require_image)
    monkeypatch.setattr(
        pmemlab.machines.container.machine,
        "runs_in_the_lab",
        lambda topology, _clone: topology.name in computer.running,
    )
    monkeypatch.setattr(
        pmemlab.machines.guest.machine, "requirements", lambda _topology: computer.missing_for_guest
    )
    return computer


def test_a_machine_of_the_running_lab_comes_first(computer: Computer) -> None:
    computer.running = frozenset({"fsdax"})
    assert computer.choose() == Choice("container", "it runs in this clone's lab")


def test_a_throwaway_container_comes_second(computer: Computer) -> None:
    computer.running = frozenset({"dram"})
    choice = computer.choose()
    assert choice.kind == "container"
    assert "throwaway" in choice.why
    assert choice.is_private


def test_a_guest_comes_third_with_the_reason_against_a_container(computer: Computer) -> None:
    computer.has_docker = False
    assert computer.choose() == Choice(
        "guest", "no container: no Docker engine answers; to get it: make docker"
    )
    assert computer.choose().is_private


def test_an_image_of_older_sources_is_not_used(computer: Computer) -> None:
    computer.has_image, computer.running = False, frozenset({"fsdax"})
    choice = computer.choose()
    assert choice.kind == "guest"
    assert "make lab-up" in choice.why


def test_a_process_comes_last_with_both_reasons(computer: Computer) -> None:
    computer.has_docker = False
    computer.missing_for_guest = [MissingRequirementError("QEMU", "apt-get install qemu")]
    choice = computer.choose()
    assert choice.kind == "process"
    assert "no Docker engine answers" in choice.why
    assert "no guest: QEMU; to get it: apt-get install qemu" in choice.why


def test_the_host_is_chosen_only_on_request(computer: Computer) -> None:
    nothing_else = [MissingRequirementError("QEMU", "apt-get install qemu")]
    for docker, image, missing in itertools.product(
        (True, False), (True, False), ([], nothing_else)
    ):
        computer.has_docker, computer.has_image, computer.missing_for_guest = docker, image, missing
        for name in topology_names():
            assert computer.choose(load_topology(name)).kind != "host"
    asked_for = MachineChooser("host", Path("/"))
    assert asked_for.choose(load_topology("fsdax")).kind == "host"


def test_containers_run_a_user_s_topology_too(computer: Computer) -> None:
    other = Topology(name="mine", summary="a user's own", proof={"nodes": [0]})
    assert computer.choose(other).kind == "container"


def test_a_requested_kind_is_taken_without_probing_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def look(*_: object) -> NoReturn:
        raise AssertionError("the kind was given")

    monkeypatch.setattr(pmemlab.machines.container.machine, "connect", look)
    chooser = MachineChooser("process", Path("/"))
    assert chooser.choose(load_topology("dram")).kind == "process"


def test_too_little_memory_for_a_container_is_given_as_the_reason(
    computer: Computer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pmemlab.machines.capacity.free_memory_bytes", lambda: 1 << 28)
    choice = computer.choose()
    assert choice.kind == "guest"  # a guest's memory isn't checked here
    assert "of free memory for fsdax: 0.2 GiB are free" in choice.why


def test_outside_of_a_clone_a_guest_is_chosen(computer: Computer, tmp_path: Path) -> None:
    del computer
    choice = MachineChooser("auto", tmp_path).choose(load_topology("fsdax"))
    assert choice.kind == "guest"
    assert "not inside a clone of pmemlab" in choice.why
