"""A machine in a container: its life cycle and its owner. The Docker engine is a fake."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import docker
import fake_docker
import fake_qemu
import pytest
from docker.errors import APIError
from docker.models.containers import Container
from fake_docker import Engine, machine_of
from recorded_facts import recorded_facts
from requests import ReadTimeout

from pmemlab.cli import machine_access
from pmemlab.errors import LabError, MachineDiedError, ProofError
from pmemlab.machines.container import labels
from pmemlab.machines.container import machine as container_machine
from pmemlab.machines.container.clone import Clone
from pmemlab.machines.container.health import is_proved, is_without_power, wait_until_proved
from pmemlab.machines.container.inventory import owner_label, sweep_abandoned
from pmemlab.machines.container.machine import open_container_machine, runs_in_the_lab
from pmemlab.machines.container.user_topology import topology_label
from pmemlab.machines.guest.machine import GuestMachine
from pmemlab.machines.lease import Lease
from pmemlab.machines.protocol import Booting
from pmemlab.topology import Topology, load_topology


@pytest.fixture(autouse=True)
def _fake_docker_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_docker.install(monkeypatch, tmp_path)


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def guest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[GuestMachine]:
    with fake_qemu.served(monkeypatch, tmp_path) as guest:
        yield guest


def fake_lab(monkeypatch: pytest.MonkeyPatch, engine: Engine, topology: Topology) -> None:
    """Gives the clone's lab one container, which was made for this topology."""
    engine.container.labels[labels.TOPOLOGY] = topology_label(topology)
    for name, value in {
        "connect": engine.client,
        "sweep_abandoned": None,
        "require_image": "image",
        "is_from_image": True,
        "kvm_works": False,
        "find_machines": {topology.name: engine.container},
    }.items():
        monkeypatch.setattr(container_machine, name, lambda *_, value=value: value)


def test_proving_a_machine_again_reads_its_facts_again(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may have been up for hours, and a user may have changed the guest meanwhile."""
    facts = recorded_facts("dram") | {"kernel": "6.1.0-later"}
    monkeypatch.setattr(container_machine, "read_facts", lambda _: facts)
    with machine_of(engine) as machine:
        machine.prove()
        assert machine.facts()["kernel"] == "6.1.0-later"


@pytest.mark.parametrize("error", [APIError("no space left"), ReadTimeout("read timed out")])
def test_an_engine_that_fails_to_give_a_machine_is_a_lab_error(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(container_machine, "connect", lambda: None)
    monkeypatch.setattr(container_machine, "find_clone", lambda: Clone(tmp_path))
    monkeypatch.setattr(container_machine, "sweep_abandoned", refuse)
    with pytest.raises(LabError, match=f"the Docker engine: {error}"):
        open_container_machine(load_topology("dram"))


def test_a_machine_of_the_lab_outlives_its_users(engine: Engine) -> None:
    with machine_of(engine) as machine:
        assert machine.facts() == {"nodes": [0]}
        assert machine.accelerator == "tcg"
    assert engine.status == "running"
    assert not engine.removed


def test_a_machine_that_its_user_owns_is_removed(engine: Engine) -> None:
    with machine_of(engine, owned=True):
        pass
    assert engine.removed


@pytest.mark.usefixtures("guest")
def test_a_machine_keeps_its_lease_across_a_power_cut_until_it_is_stopped(
    engine: Engine, tmp_path: Path
) -> None:
    machine = machine_of(engine, lease=Lease(tmp_path / "dram.lock"))
    machine.power_cut()
    machine.power_on()
    assert machine.run(["echo", "up"]).stdout == "up\n"
    with pytest.raises(LabError, match="dram of the running lab is used by process"):
        Lease(tmp_path / "dram.lock", limit_s=0)
    machine.stop()
    assert engine.restarts == 0
    Lease(tmp_path / "dram.lock", limit_s=0).end()


@pytest.mark.usefixtures("guest")
def test_a_lab_machine_that_is_given_back_without_power_is_restarted(engine: Engine) -> None:
    machine = machine_of(engine)
    machine.power_cut()
    machine.stop()
    machine.stop()
    assert engine.restarts == 1


def test_a_machine_that_was_left_without_power_is_recognised(engine: Engine) -> None:
    assert not is_without_power(engine.container)
    engine.has_power = False
    assert is_without_power(engine.container)


@pytest.mark.usefixtures("guest")
def test_a_machine_that_fails_to_boot_again_is_down(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with machine_of(engine) as machine:
        machine.power_cut()
        monkeypatch.setenv("PATH", "")  # has no QEMU
        with pytest.raises(LabError, match="qemu"):
            machine.power_on()
        with pytest.raises(MachineDiedError, match=r"(?s)did not come up.*qemu"):
            machine.run(["true"])


def test_a_container_that_ends_during_a_command_is_a_dead_machine(
    engine: Engine, guest: GuestMachine
) -> None:
    with machine_of(engine) as machine:
        threading.Timer(0.2, guest.stop).start()
        with pytest.raises(MachineDiedError, match="is stopped"):
            machine.run(["sleep", "60"])


@pytest.mark.usefixtures("guest")
def test_stopping_a_machine_ends_its_running_command(engine: Engine) -> None:
    machine = machine_of(engine)
    threading.Timer(0.2, machine.stop).start()
    with pytest.raises(MachineDiedError, match=r"container lab_dram_1 is stopped"):
        machine.run(["sleep", "60"])


def test_an_unproved_machine_is_not_handed_out(engine: Engine) -> None:
    engine.health = "starting"
    assert not is_proved(engine.container)


def test_a_failed_proof_is_a_lab_error_with_the_end_of_the_log(engine: Engine) -> None:
    engine.status = "exited"
    with pytest.raises(MachineDiedError, match=r"(?s)has ended.*the last \d+ lines"):
        wait_until_proved(engine.container)


def test_a_machine_that_takes_too_long_is_a_lab_error(engine: Engine) -> None:
    engine.health = "unhealthy"
    with pytest.raises(MachineDiedError, match="not proved in time"):
        wait_until_proved(engine.container)


def test_a_machine_that_was_proved_and_paused_is_not_called_unproved(engine: Engine) -> None:
    engine.health, engine.has_proof = "unhealthy", True
    with pytest.raises(MachineDiedError, match="was proved, and doesn't answer now; if it was pau"):
        wait_until_proved(engine.container)


def test_a_lab_machine_serves_a_user_s_topology_only_if_it_was_made_from_the_same_file(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = replace(load_topology("dram"), name="mine")
    fake_lab(monkeypatch, engine, mine)
    found = {"mine": engine.container, "dram": engine.container}
    monkeypatch.setattr(container_machine, "find_machines", lambda *_: found)
    clone = Clone(Path("/clone"))
    assert runs_in_the_lab(mine, clone)
    assert not runs_in_the_lab(replace(mine, cpus=3), clone)
    assert not runs_in_the_lab(load_topology("dram"), clone)
    engine.status = "exited"
    assert not runs_in_the_lab(mine, clone)


def test_a_command_on_a_fresh_guest_says_that_the_lab_s_container_has_ended(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    mine = replace(load_topology("dram"), name="mine")
    fake_lab(monkeypatch, engine, mine)
    monkeypatch.setattr(machine_access, "load_topology", lambda _: mine)
    monkeypatch.setattr(machine_access, "_new_guest", lambda *_: contextlib.nullcontext("a guest"))
    engine.status = "exited"
    with machine_access.running_machine_or_new_guest("mine") as guest:
        assert str(guest) == "a guest"
    message = capfd.readouterr().err
    assert "mine: the lab's container lab_dram_1 (exited) doesn't run" in message
    engine.container.labels[labels.TOPOLOGY] = "another"
    with machine_access.running_machine_or_new_guest("mine"):
        assert capfd.readouterr().err == "", "the container is another topology's"


def test_a_lab_machine_made_from_another_file_is_not_used(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = replace(load_topology("dram"), name="mine")
    fake_lab(monkeypatch, engine, replace(mine, cpus=3))
    own = Engine()
    asked: list[Topology] = []

    def start(_client: object, _clone: object, topology: Topology, *_: object) -> Container:
        asked.append(topology)
        return own.container

    monkeypatch.setattr(container_machine, "start_throwaway", start)
    booting: list[Booting] = []
    open_container_machine(mine, on_boot=booting.append).stop()
    assert asked == [mine]
    assert [boot.accelerator for boot in booting] == ["tcg"]
    assert own.removed
    assert not engine.removed
    own.removed, own.exists, own.health = False, True, "starting"
    with pytest.raises(MachineDiedError, match="has ended"):
        open_container_machine(mine, on_boot=lambda booting: booting.stop())
    assert own.removed


def test_a_lab_machine_whose_facts_have_changed_is_not_handed_out(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may have been up for hours, and a user may have changed the guest meanwhile."""
    dram = load_topology("dram")
    fake_lab(monkeypatch, engine, dram)
    monkeypatch.setattr(container_machine, "find_clone", lambda: Clone(tmp_path))
    facts = recorded_facts("dram") | {"nodes": [0, 1]}
    monkeypatch.setattr(container_machine, "read_facts", lambda _: facts)
    with pytest.raises(ProofError, match=r"nodes: expected \[0\], found \[0, 1\]"):
        open_container_machine(dram)
    Lease.for_lab_machine(Clone(tmp_path), "dram").end()  # the lease has been released


@pytest.mark.parametrize(
    ("owner", "swept"),
    [(None, False), ("of this process", False), ("0:1", True)],
    ids=["the lab's", "of a living process", "of a dead process"],
)
def test_the_containers_of_a_dead_process_are_removed(
    engine: Engine, owner: str | None, swept: bool
) -> None:
    if owner is not None:
        owner = owner_label() if owner == "of this process" else owner
        engine.container.labels[labels.OWNER] = owner
    client = SimpleNamespace(containers=SimpleNamespace(list=lambda **_: [engine.container]))
    sweep_abandoned(cast(docker.DockerClient, client), Clone(Path("/clone")))
    assert engine.removed == swept
