"""The containers that `pmemlab lab up` creates, keeps and replaces. The Docker engine is a fake."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from docker.errors import ImageNotFound
from rich.console import Console

from pmemlab.machines.container import lab, labels
from pmemlab.machines.container.clone import Clone
from pmemlab.machines.container.lab import lab_up
from pmemlab.proof import Proof
from pmemlab.topology import Topology, load_topology

CLONE = Clone(Path(__file__).parents[2])


@dataclass
class FakeContainer:
    """A fake container."""

    engine: Engine
    name: str
    labels: dict[str, str]
    image_id: str
    is_up: bool = False

    @property
    def attrs(self) -> dict[str, str]:
        return {"Image": self.image_id}

    def put_archive(self, _folder: str, _archive: bytes) -> bool:
        self.engine.log.append(f"copy into {self.name}")
        return True

    def restart(self, timeout: int) -> None:
        del timeout
        self.is_up = True
        self.engine.log.append(f"start {self.name}")

    def remove(self, **_: bool) -> None:
        self.engine.made.remove(self)
        self.engine.log.append(f"remove {self.name}")


@dataclass
class Engine:
    """A fake Docker engine, with Compose."""

    made: list[FakeContainer] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    names: dict[str, str | None] = field(default_factory=dict)  # machine -> container's name
    image_id: str = "sha256:1"

    @property
    def containers(self) -> Engine:
        return self

    @property
    def images(self) -> Engine:
        return self

    def get(self, name: str) -> Engine:
        if name != "pmemlab:now":
            raise ImageNotFound(name)
        return self

    @property
    def id(self) -> str:
        return self.image_id

    def info(self) -> dict[str, int]:
        return {"NCPU": 2}

    def create(self, _image: str, _command: list[str], **options: Any) -> FakeContainer:
        name = options["labels"][labels.MACHINE]
        self.made.append(FakeContainer(self, name, options["labels"], self.image_id))
        self.names[name] = options.get("name")
        self.log.append(f"create {name}")
        return self.made[-1]

    def run(self, *arguments: str) -> None:
        """Stands in for Compose's `run`."""
        names = [name for name in arguments if name != "up" and not name.startswith("--")]
        for name in names:
            if not any(each.name == name for each in self.made):
                self.made.append(FakeContainer(self, name, {labels.MACHINE: name}, self.image_id))
        self.log.append(f"compose up {' '.join(names)}")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    engine = Engine()

    def returning(value: object) -> Callable[..., Any]:
        return lambda *_, **__: value

    for name, value in {
        "find_clone": CLONE,
        "connect": engine,
        "sweep_abandoned": None,
        "ensure_image": "pmemlab:now",
        "kvm_works": False,
        "Compose": engine,
        "read_proof": Proof("dram", "tcg", {"nodes": [0]}, {"nodes": [0]}),
    }.items():
        monkeypatch.setattr(lab, name, returning(value))
    monkeypatch.setattr(lab, "find_machines", lambda *_: {each.name: each for each in engine.made})
    monkeypatch.setattr(lab, "is_proved", lambda container: container.is_up)
    return engine


def up(*topologies: Topology) -> None:
    lab_up(topologies, Console(file=io.StringIO()))


MINE = replace(load_topology("dram"), name="mine")


def test_machines_on_demand_start_only_if_they_are_named(engine: Engine) -> None:
    up()
    assert {each.name for each in engine.made} >= {"dram", "fsdax", "nvme"}
    assert "sata" not in {each.name for each in engine.made}
    up(load_topology("sata"))
    assert engine.log[-2:] == ["compose up sata", "start sata"]


def test_a_user_s_topology_needs_no_compose_service(engine: Engine) -> None:
    up(load_topology("dram"), MINE)
    first, *rest = engine.log
    assert first == "compose up dram"
    assert sorted(rest) == ["copy into mine", "create mine", "start dram", "start mine"]
    assert labels.OWNER not in engine.made[-1].labels, "with an owner it would be swept"
    assert engine.names["mine"] == f"{CLONE.project}-mine-1"


def test_a_user_s_machine_that_is_up_is_left_alone(engine: Engine) -> None:
    up(MINE)
    engine.log.clear()
    up(MINE)
    assert engine.log == []


def test_a_user_s_machine_whose_file_has_changed_is_replaced(engine: Engine) -> None:
    up(MINE)
    engine.log.clear()
    up(replace(MINE, cpus=2))
    assert engine.log == ["remove mine", "create mine", "copy into mine", "start mine"]


def test_a_user_s_machine_of_an_older_image_is_replaced(engine: Engine) -> None:
    up(MINE)
    engine.log.clear()
    engine.image_id = "sha256:2"
    up(MINE)
    assert engine.log == ["remove mine", "create mine", "copy into mine", "start mine"]
