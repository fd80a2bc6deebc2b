"""compose.yaml: a service a topology, with few privileges and little memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pmemlab.clone import Clone
from pmemlab.compose import standing_machines
from pmemlab.container_engine import labels
from pmemlab.container_engine.health import STATE_FOLDER
from pmemlab.container_engine.throwaway import create_options
from pmemlab.errors import LabError
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
    assert service["command"] == ["serve", name, "--state-dir", STATE_FOLDER]
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


def test_a_field_that_throwaway_containers_would_lose_is_refused() -> None:
    with pytest.raises(LabError, match="sysctls"):
        create_options({**SERVICES["dram"], "sysctls": {"a": "b"}})


def test_a_duration_without_unit_is_refused() -> None:
    service = {**SERVICES["dram"], "healthcheck": {**SERVICES["dram"]["healthcheck"]}}
    service["healthcheck"]["interval"] = "3"
    with pytest.raises(LabError, match="duration"):
        create_options(service)
