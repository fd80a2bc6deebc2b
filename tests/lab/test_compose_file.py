"""compose.yaml has one service per topology, with few privileges and little memory."""

from __future__ import annotations

import io
import os
import re
import subprocess
import tarfile
import time
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
from pmemlab.machines.container.compose_file import (
    check_current,
    compose_files,
    default_machines,
)
from pmemlab.machines.container.creation import create_options, start_throwaway
from pmemlab.machines.container.health import STATE_FOLDER
from pmemlab.machines.container.lab import lab_up
from pmemlab.machines.container.user_topology import serves_topology
from pmemlab.topology import Requirements, Topology, load_topology, topology_names

_MIB = 1 << 20
_LAB_BYTES = 15 << 30
# Memory of QEMU and the programs beside it, without the guest's memory and DIMMs.
_QEMU_BYTES = 430 * _MIB

_CLONE = Path(__file__).parents[2]

SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((_CLONE / "compose.yaml").read_text())[
    "services"
]


def _memory_limit(service: dict[str, Any]) -> int:
    limit: str = service["mem_limit"]
    assert limit.endswith("m")
    return int(limit.removesuffix("m")) * _MIB


def test_both_compose_files_match_the_topologies() -> None:
    """If this fails, run `pmemlab lab compose --write`."""
    for name, text in compose_files().items():
        assert (_CLONE / name).read_text() == text, name


def test_the_lab_does_not_start_from_a_file_that_is_out_of_date(tmp_path: Path) -> None:
    for name, text in compose_files().items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    check_current(Clone(tmp_path))
    file = tmp_path / "compose.yaml"
    file.write_text(file.read_text().replace("1326m", "1226m"))
    with pytest.raises(LabError, match=r"^compose\.yaml: .*pmemlab lab compose --write"):
        check_current(Clone(tmp_path))


def test_each_topology_that_the_image_is_new_enough_for_has_one_service() -> None:
    wanted = [name for name in topology_names() if load_topology(name).requires == Requirements()]
    assert sorted(SERVICES) == wanted


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_serves_the_topology_of_its_name_without_any_privilege(name: str) -> None:
    service, topology = SERVICES[name], load_topology(name)
    assert service["command"] == ["machine", "serve", name, "--state-dir", STATE_FOLDER]
    assert service["labels"][labels.MACHINE] == name
    assert service["labels"][labels.CLONE] == "${COMPOSE_PROJECT_NAME:-pmemlab}"
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["network_mode"] == "none"
    assert not {"cap_add", "devices", "pid", "ports", "privileged", "volumes"} & set(service)
    healthy = service["healthcheck"]["test"][1]
    assert healthy.startswith(f"cd {STATE_FOLDER} && test -s proof.json &&"), "needs its proof"
    needed = topology.memory_bytes + sum(topology.backing_files.values()) + _QEMU_BYTES
    assert _memory_limit(service) >= needed


def test_a_health_check_reports_a_new_proof_at_once_and_then_sleeps(
    tmp_path: Path,
) -> None:
    check = SERVICES["dram"]["healthcheck"]
    kind, command = check["test"]
    assert kind == "CMD-SHELL"
    slept = int(re.findall(r"sleep (\d+)", command)[0])
    assert slept < create_options(SERVICES["dram"])["healthcheck"]["timeout"] // 10**9
    here = command.replace(STATE_FOLDER, str(tmp_path)).replace("sleep", "echo")

    def checked() -> tuple[int, str]:
        done = subprocess.run(["sh", "-c", here], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout.strip()

    proof = tmp_path / "proof.json"
    assert checked() == (1, "")
    proof.touch()
    assert checked() == (1, ""), "the proof is still empty"
    proof.write_text("{}")
    an_hour_ago, in_an_hour = time.time() - 3600, time.time() + 3600
    os.utime(proof, (an_hour_ago, an_hour_ago))
    assert checked() == (0, "")
    assert checked() == (0, str(slept))
    os.utime(proof, (in_an_hour, in_an_hour))
    assert checked() == (0, ""), "it has a new proof, as after a power cut"


def test_the_standing_machines_together_fit_the_lab_s_memory() -> None:
    standing = default_machines()
    assert sum(_memory_limit(SERVICES[name]) for name in standing) <= _LAB_BYTES


def test_machines_whose_topology_says_on_demand_are_not_kept_running() -> None:
    on_demand = {"fsdax-eadr", "sata", "two-sockets", "interleaved", "mixed-mode"}
    assert on_demand == SERVICES.keys() - default_machines()


def test_the_kvm_override_gives_every_service_the_device_and_nothing_else() -> None:
    override = yaml.safe_load((_CLONE / "docker/compose.kvm.yaml").read_text())["services"]
    assert override == {key: {"devices": ["/dev/kvm"]} for key in SERVICES}


@dataclass
class _Engine:
    """A fake Docker engine that records the calls, and can refuse to start a container."""

    refusal: str | None = None
    created: dict[str, Any] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)

    @property
    def containers(self) -> _Engine:
        return self

    def create(self, image: str, command: list[str], **options: Any) -> _Engine:
        arguments = {"image": image, "command": command, "version": "1.44", **options}
        # This function rejects unknown options. The SDK's type stubs lack it.
        self.created = vars(sdk)["_create_container_args"](arguments)
        self.labels = options["labels"]
        self.log.append("create")
        return self

    def put_archive(self, folder: str, archive: bytes) -> bool:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            for member in tar:
                content = tar.extractfile(member)
                assert content is not None
                self.files[os.path.join(folder, member.name)] = content.read()  # noqa: PTH118
        self.log.append("put")
        return True

    def start(self) -> None:
        self.log.append("start")
        if self.refusal:
            raise DockerException(self.refusal)

    def remove(self, **_options: object) -> None:
        self.log.append("remove")


def _start_throwaway(engine: _Engine, topology: Topology | None = None) -> Container:
    client = cast(docker.DockerClient, engine)
    topology = topology or load_topology("fsdax")
    return start_throwaway(client, Clone(_CLONE), topology, "pmemlab:x", kvm=True)


def test_a_throwaway_container_is_started_without_changing_the_environment() -> None:
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
    assert host["Memory"] == _memory_limit(SERVICES["fsdax"])
    interval_ns = engine.created["healthcheck"]["interval"]
    assert interval_ns > 0
    assert interval_ns % 10**9 == 0
    assert [device["PathOnHost"] for device in host["Devices"]] == ["/dev/kvm"]


def test_a_throwaway_container_that_is_refused_is_removed() -> None:
    engine = _Engine("no space left")
    with pytest.raises(LabError, match="for machine fsdax: no space left"):
        _start_throwaway(engine)
    assert engine.log == ["create", "start", "remove"]


_MINE = """
name: mine
summary: fsdax with more memory
like: fsdax
memory: 1G
"""


@pytest.fixture
def user_topology(tmp_path: Path) -> Topology:
    (tmp_path / "mine.yaml").write_text(_MINE)
    return load_topology(tmp_path / "mine.yaml")


def test_a_user_s_topology_is_copied_into_its_container_before_it_starts(
    user_topology: Topology, tmp_path: Path
) -> None:
    engine = _Engine()
    _start_throwaway(engine, user_topology)
    assert engine.log == ["create", "put", "start"]
    ((path, content),) = engine.files.items()
    assert engine.created["command"] == ["machine", "serve", path, "--state-dir", STATE_FOLDER]
    served = tmp_path / "in the container" / Path(path).name
    served.parent.mkdir()
    served.write_bytes(content)
    assert load_topology(served) == user_topology


def test_a_user_s_container_has_no_more_privileges_than_a_service(user_topology: Topology) -> None:
    of_service, of_user = _Engine(), _Engine()
    _start_throwaway(of_service)
    _start_throwaway(of_user, user_topology)
    ours, theirs = of_service.created["host_config"], of_user.created["host_config"]
    more = (user_topology.memory_bytes - load_topology("fsdax").memory_bytes) // _MIB
    assert theirs.pop("Memory") == ours.pop("Memory") + more * _MIB
    assert theirs == ours


@pytest.mark.parametrize("name", ["on", "my machine", "3", "a: b", "x'y", "${HOME}", "#"])
def test_a_user_s_file_may_have_any_name(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(_MINE), "name": name}))
    engine = _Engine()
    _start_throwaway(engine, load_topology(path))
    assert engine.created["command"][2] == f"/etc/pmemlab/{name}.yaml"
    assert engine.labels[labels.MACHINE] == name


def test_a_container_serves_the_topology_that_it_was_made_for_and_no_other(
    user_topology: Topology, tmp_path: Path
) -> None:
    container = _start_throwaway(_Engine(), user_topology)
    assert serves_topology(container, user_topology)
    (tmp_path / "mine.yaml").write_text(_MINE.replace("1G", "2G"))
    assert not serves_topology(container, load_topology(tmp_path / "mine.yaml"))
    assert serves_topology(_start_throwaway(_Engine()), load_topology("fsdax"))


def test_a_user_s_topology_with_the_name_of_a_lab_machine_is_refused(tmp_path: Path) -> None:
    (tmp_path / "dram.yaml").write_text(_MINE.replace("mine", "dram"))
    with pytest.raises(LabError, match="machine of the lab's own has this name"):
        lab_up([load_topology(tmp_path / "dram.yaml")])


def test_a_topology_that_the_image_is_too_old_for_is_refused_before_anything_is_built() -> None:
    with pytest.raises(LabError, match="machine cxl-ram wants a newer QEMU or kernel"):
        lab_up([load_topology("cxl-ram")])


def test_a_field_that_throwaway_containers_would_lose_is_refused() -> None:
    with pytest.raises(LabError, match="sysctls"):
        create_options({**SERVICES["dram"], "sysctls": {"a": "b"}})


def test_a_duration_without_unit_is_refused() -> None:
    service = {**SERVICES["dram"], "healthcheck": {**SERVICES["dram"]["healthcheck"]}}
    service["healthcheck"]["interval"] = "3"
    with pytest.raises(LabError, match="duration"):
        create_options(service)
