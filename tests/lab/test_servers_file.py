"""compose.servers.yaml: servers with few privileges, on a network of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pmemlab.machines.container import labels
from pmemlab.machines.container.clone import Clone
from pmemlab.machines.container.servers import HEAD

_CLONE = Clone(Path(__file__).parents[2])
_FILE: dict[str, Any] = yaml.safe_load(_CLONE.servers_file.read_text())
_SERVICES: dict[str, dict[str, Any]] = _FILE["services"]
_WITH_PMEM = sorted(_SERVICES.keys() - {HEAD})


@pytest.mark.parametrize("name", _SERVICES)
def test_a_server_has_no_privilege_and_no_port_outside_of_its_network(name: str) -> None:
    service = _SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["networks"] == ["servers"]
    assert not {"cap_add", "devices", "network_mode", "pid", "ports", "privileged"} & set(service)


def test_the_servers_network_is_internal() -> None:
    assert list(_FILE["networks"]) == ["servers"]
    assert _FILE["networks"]["servers"]["internal"] is True


@pytest.mark.parametrize("name", _SERVICES)
def test_every_server_requires_the_secret_token(name: str) -> None:
    token = _SERVICES[name]["environment"]["RAY_AUTH_TOKEN"]
    assert token.startswith("${PMEMLAB_SERVERS_TOKEN:?"), "Compose refuses to start without it"


def test_several_servers_have_pmem_on_a_file_system_of_their_own() -> None:
    assert len(_WITH_PMEM) >= 2
    for name in _WITH_PMEM:
        (mount,) = _SERVICES[name]["tmpfs"]
        assert f"--pmem {mount.partition(':')[0]} " in _SERVICES[name]["command"][0]


def test_services_networks_and_volumes_are_labelled_with_the_clone() -> None:
    made = [*_SERVICES.values(), *_FILE["networks"].values(), *_FILE["volumes"].values()]
    assert [each["labels"][labels.CLONE] for each in made] == ["${PMEMLAB_CLONE:-pmemlab}"] * len(
        made
    )
