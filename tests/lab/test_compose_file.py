"""compose.yaml: a service a topology, with few privileges and little memory."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import docker
import pytest
import yaml
from docker.errors import DockerException
from docker.models import containers as sdk
from docker.models.containers import Container

from pmemlab.errors import LabError
from pmemlab.machines.container import labels
from pmemlab.machines.container.clone import Clone
from pmemlab.machines.container.health import STATE_FOLDER
from pmemlab.machines.container.lab import standing_machines
from pmemlab.machines.container.throwaway import create_options, start_throwaway
from pmemlab.topology import Requirements, load_topology, topology_names

_MIB = 1 << 20
_LAB_BYTES = 15 << 30
# What QEMU and the programs beside it take, without the guest's memory and DIMMs.
_QEMU_BYTES = 430 * _MIB

_CLONE = Path(__file__).parents[2]

SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((_CLONE / "compose.yaml").read_text())[
    "services"
]


def _memory_limit(service: dict[str, Any]) -> int:
    limit: str = service["mem_limit"]
    assert limit.endswith("m")
    return int(limit.removesuffix("m")) * _MIB


def test_there_is_one_service_a_topology_that_the_image_is_new_enough_for() -> None:
    wanted = [name for name in topology_names() if load_topology(name).requires == Requirements()]
    assert sorted(SERVICES) == wanted


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_serves_the_topology_of_its_name(name: str) -> None:
    service = SERVICES[name]
    assert service["command"] == ["machine", "serve", name, "--state-dir", STATE_FOLDER]
    assert service["labels"][labels.MACHINE] == name


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_labelled_with_its_clone(name: str) -> None:
    assert SERVICES[name]["labels"][labels.CLONE] == "${COMPOSE_PROJECT_NAME:-pmemlab}"


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_has_no_privilege_at_all(name: str) -> None:
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["network_mode"] == "none"
    assert not {"cap_add", "devices", "pid", "ports", "privileged", "volumes"} & set(service)


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_healthy_by_its_proof(name: str) -> None:
    assert f"{STATE_FOLDER}/proof.json" in SERVICES[name]["healthcheck"]["test"]


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_may_take_what_its_machine_needs(name: str) -> None:
    topology = load_topology(name)
    needed = topology.memory_bytes + sum(topology.backing_files.values()) + _QEMU_BYTES
    assert _memory_limit(SERVICES[name]) >= needed


def test_the_machines_that_stand_stay_within_their_memory_together() -> None:
    standing = standing_machines(Clone(_CLONE))
    assert sum(_memory_limit(SERVICES[name]) for name in standing) <= _LAB_BYTES


def test_a_machine_that_is_on_demand_is_labelled_so_and_left_alone_by_lab_up() -> None:
    on_demand = {name for name in SERVICES if labels.ON_DEMAND in SERVICES[name]["labels"]}
    assert on_demand == {"fsdax-eadr", "sata", "two-sockets", "interleaved", "mixed-mode"}
    assert on_demand == SERVICES.keys() - standing_machines(Clone(_CLONE))


def test_the_kvm_override_gives_every_service_the_device_and_nothing_else() -> None:
    override = yaml.safe_load((_CLONE / "docker/compose.kvm.yaml").read_text())["services"]
    assert override == {key: {"devices": ["/dev/kvm"]} for key in SERVICES}


def test_a_throwaway_container_is_made_as_its_service_is() -> None:
    options = create_options(SERVICES["fsdax"])
    assert options["cap_drop"] == ["ALL"]
    assert options["network"] == "none"
    assert options["mem_limit"] == SERVICES["fsdax"]["mem_limit"]
    assert options["tmpfs"] == {STATE_FOLDER: "mode=0700"}
    assert options["healthcheck"]["interval"] % 10**9 == 0
    assert options["healthcheck"]["interval"] > 0


@dataclass
class _Engine:
    """A Docker engine that notes what it is asked for, and may refuse to start a container."""

    refusal: str | None = None
    created: dict[str, Any] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)

    @property
    def containers(self) -> _Engine:
        return self

    def create(self, image: str, command: list[str], **options: Any) -> _Engine:
        arguments = {"image": image, "command": command, "version": "1.44", **options}
        # It refuses what the SDK doesn't know, and isn't in the SDK's type stubs.
        self.created = vars(sdk)["_create_container_args"](arguments)
        self.log.append("create")
        return self

    def start(self) -> None:
        self.log.append("start")
        if self.refusal:
            raise DockerException(self.refusal)

    def remove(self, **_options: object) -> None:
        self.log.append("remove")


def _start_throwaway(engine: _Engine) -> Container:
    client = cast(docker.DockerClient, engine)
    return start_throwaway(client, Clone(_CLONE), "fsdax", "pmemlab:x", kvm=True)


def test_a_throwaway_container_is_started_in_the_user_s_environment_as_it_was() -> None:
    before = dict(os.environ)
    engine = _Engine()
    assert cast(Any, _start_throwaway(engine)) is engine
    assert os.environ == before
    assert engine.log == ["create", "start"]
    assert engine.created["command"] == SERVICES["fsdax"]["command"]
    assert engine.created["labels"][labels.MACHINE] == "fsdax"
    host = engine.created["host_config"]
    assert host["CapDrop"] == ["ALL"]
    assert host["Tmpfs"] == {STATE_FOLDER: "mode=0700"}
    assert host["NetworkMode"] == "none"
    assert [device["PathOnHost"] for device in host["Devices"]] == ["/dev/kvm"]


def test_a_throwaway_container_that_is_refused_is_removed() -> None:
    engine = _Engine("no space left")
    with pytest.raises(LabError, match="for machine fsdax: no space left"):
        _start_throwaway(engine)
    assert engine.log == ["create", "start", "remove"]


def test_a_field_that_throwaway_containers_would_lose_is_refused() -> None:
    with pytest.raises(LabError, match="sysctls"):
        create_options({**SERVICES["dram"], "sysctls": {"a": "b"}})


def test_a_duration_without_unit_is_refused() -> None:
    service = {**SERVICES["dram"], "healthcheck": {**SERVICES["dram"]["healthcheck"]}}
    service["healthcheck"]["interval"] = "3"
    with pytest.raises(LabError, match="duration"):
        create_options(service)
