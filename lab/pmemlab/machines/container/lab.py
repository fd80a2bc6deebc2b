"""Starts the whole lab, with its standing machines proved, or removes it."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import docker
from docker.models.containers import Container
from rich.console import Console
from rich.table import Table

from pmemlab.errors import LabError, MissingRequirementError
from pmemlab.machines.container.clone import Clone, find_clone
from pmemlab.machines.container.compose_command import Compose
from pmemlab.machines.container.compose_file import (
    check_current,
    check_versions,
    default_machines,
)
from pmemlab.machines.container.connection import connect
from pmemlab.machines.container.creation import create_machine
from pmemlab.machines.container.health import is_proved, read_proof
from pmemlab.machines.container.image import ensure_image
from pmemlab.machines.container.inventory import (
    find_machines,
    is_from_image,
    remove_container,
    remove_images,
    sweep,
    sweep_abandoned,
)
from pmemlab.machines.container.kvm import kvm_works
from pmemlab.machines.container.stages import Stage, Stages
from pmemlab.machines.container.user_topology import is_lab_topology, serves_topology
from pmemlab.topology import Topology, load_topology, topology_names

__all__ = ["lab_down", "lab_up"]

_POLL_S = 0.25
_STOP_S = 10


@dataclass(frozen=True)
class _Outcome:
    """The result of starting a machine. seconds: 0 if it was up before; error: None if proved."""

    name: str
    container: Container
    seconds: float
    error: LabError | None = None


def lab_up(topologies: Sequence[Topology] = (), console: Console | None = None) -> None:
    """Builds the image if need be, starts the machines, and waits until each is proved.

    topologies: the lab's own or a user's. Default: the lab's own that aren't on demand.
    console: for progress and the table of proved facts. Default: stdout.

    Raises `LabError` if a machine's proof fails, with the end of its log, once the other machines
    are up; `MissingRequirementError` if no Docker engine answers.
    """
    console = console or Console()
    topologies = topologies or [*map(load_topology, default_machines())]
    users = [topology for topology in topologies if not is_lab_topology(topology)]
    for topology in topologies:
        check_versions(topology)
    for topology in users:
        if topology.name in topology_names():
            raise LabError(
                f"topology {topology.name}: a machine of the lab's own has this name; "
                "give the file, and the topology in it, another"
            )
    clone = find_clone()
    check_current(clone)
    client = connect()
    with Stages(console) as stages:
        sweep_abandoned(client, clone)
        image = ensure_image(client, clone, "machine", stages)
        kvm = kvm_works(client, image)
        overrides = [clone.kvm_override] if kvm else []
        lab_topologies = [topology.name for topology in topologies if topology not in users]
        if lab_topologies:
            compose = Compose(
                clone,
                clone.compose_file,
                *overrides,
                project=clone.project,
                environment={"PMEMLAB_IMAGE": image},
            )
            compose.run("up", "--no-start", "--remove-orphans", *lab_topologies)
        machines = find_machines(client, clone)
        containers = {name: machines[name] for name in lab_topologies}
        for topology in users:
            existing = machines.get(topology.name)
            containers[topology.name] = _user_container(
                client, clone, topology, image, kvm, existing
            )
        # A starting machine waits now and then: three keep two processors busy.
        outcomes = list(_start(containers, math.ceil(1.5 * client.info()["NCPU"]), stages))
    console.print(_table(outcome for outcome in outcomes if not outcome.error))
    failures = [f"{outcome.name}: {outcome.error}" for outcome in outcomes if outcome.error]
    if failures:
        raise LabError("\n\n".join(failures))


def _user_container(
    client: docker.DockerClient,
    clone: Clone,
    topology: Topology,
    image: str,
    kvm: bool,
    existing: Container | None,
) -> Container:
    """Returns the container of a user's own topology: the one found, if it is up to date."""
    if existing is not None:
        if serves_topology(existing, topology) and is_from_image(existing, client, image):
            return existing
        remove_container(existing)
    return create_machine(client, clone, topology, image, kvm)


def lab_down(*, images: bool = False) -> None:
    """Removes everything of the clone's lab from the Docker engine, its images only on request."""
    console = Console()
    try:
        client = connect()
    except MissingRequirementError as error:
        console.print(f"{error.what}: nothing of the lab runs there")
        return
    clone = find_clone()
    console.print(f"{sweep(client, clone)} machines removed")
    if images:
        console.print(f"{remove_images(client, clone)} images removed")


def _start(machines: Mapping[str, Container], at_a_time: int, stages: Stages) -> Iterable[_Outcome]:
    waiting = deque(machines.items())
    starting: dict[str, tuple[Container, Stage]] = {}
    while waiting or starting:
        while waiting and len(starting) < at_a_time:
            name, container = waiting.popleft()
            if _is_up(container):
                yield _Outcome(name, container, 0)
                continue
            # Stops a container found half alive; a container just created has nothing to stop.
            container.restart(timeout=_STOP_S)
            starting[name] = container, stages.begin(name)
        for name, (container, stage) in [*starting.items()]:
            try:
                if not is_proved(container):
                    continue
            except LabError as error:
                yield _Outcome(name, container, stage.end("failed"), error)
            else:
                yield _Outcome(name, container, stage.end("proved"))
            del starting[name]
        time.sleep(_POLL_S)


def _is_up(container: Container) -> bool:
    try:
        return is_proved(container)
    except LabError:
        return False


def _table(outcomes: Iterable[_Outcome]) -> Table:
    table = Table("machine", "accelerator", "proved", "seconds")
    table.columns[-1].justify = "right"
    for outcome in sorted(outcomes, key=lambda outcome: outcome.name):
        proof = read_proof(outcome.container)
        table.add_row(
            outcome.name,
            proof.accelerator,
            "\n".join(f"{fact} = {value}" for fact, value in proof.proved.items()),
            f"{outcome.seconds:.1f}" if outcome.seconds else "was up",
        )
    return table
