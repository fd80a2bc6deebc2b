"""The `container` machine: a Compose service, or a throwaway container, that runs a guest."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import docker
from docker.models.containers import Container

from pmemlab.errors import LabError, MissingRequirementError
from pmemlab.machines.boot import POWER_CUT, STOPPED, Uptime
from pmemlab.machines.capacity import machine_bytes, missing_memory
from pmemlab.machines.container.clone import Clone, find_clone
from pmemlab.machines.container.compose_file import check_versions
from pmemlab.machines.container.connection import connect, engine_errors_as_lab_errors
from pmemlab.machines.container.container_link import container_link
from pmemlab.machines.container.creation import start_throwaway
from pmemlab.machines.container.health import (
    has_ended,
    is_without_power,
    read_proof,
    wait_until_proved,
)
from pmemlab.machines.container.image import current_image
from pmemlab.machines.container.inventory import (
    find_machines,
    is_from_image,
    remove_container,
    sweep_abandoned,
)
from pmemlab.machines.container.kvm import kvm_works
from pmemlab.machines.container.user_topology import serves_topology
from pmemlab.machines.guest import agent
from pmemlab.machines.guest.link import Link
from pmemlab.machines.lease import Lease
from pmemlab.machines.linked import LinkedMachine
from pmemlab.machines.protocol import Accelerator, Booting
from pmemlab.proof import prove, read_facts
from pmemlab.topology import Topology

__all__ = [
    "ContainerMachine",
    "find_container",
    "open_container_machine",
    "require_image",
    "requirements",
    "running_machines",
    "runs_in_the_lab",
]

# The image's virtual environment with both packages.
_PYTHON = "/opt/pmemlab/bin/python"


def running_machines() -> frozenset[str]:
    """Returns the names of the topologies whose machine runs in this clone's lab.

    Raises `MissingRequirementError` if no Docker engine answers.
    """
    machines = find_machines(connect(), find_clone())
    return frozenset(name for name, container in machines.items() if container.status == "running")


def runs_in_the_lab(topology: Topology, clone: Clone | None = None) -> bool:
    """Returns whether exactly this topology's machine runs in the clone's lab.

    Raises `MissingRequirementError` if no Docker engine answers.
    """
    container = find_container(topology, clone)
    return container is not None and container.status == "running"


def find_container(topology: Topology, clone: Clone | None = None) -> Container | None:
    """Returns the container of exactly this topology's machine in the clone's lab, running or not.

    Raises `MissingRequirementError` if no Docker engine answers.
    """
    container = find_machines(connect(), clone or find_clone()).get(topology.name)
    return container if container is not None and serves_topology(container, topology) else None


def requirements(topology: Topology, start: Path | None = None) -> list[MissingRequirementError]:
    """Returns what this computer lacks for a machine of this topology in a container.

    start: a folder of the clone. Default: the working folder.
    """
    try:
        check_versions(topology)
        clone = find_clone(start)
        client = connect()
        require_image(client, clone)
    except MissingRequirementError as error:
        return [error]
    if runs_in_the_lab(topology, clone):
        return []
    return list(missing_memory(machine_bytes(topology), topology.name))


def require_image(client: docker.DockerClient, clone: Clone) -> str:
    """Returns the name of the image of the clone's present sources.

    Raises `MissingRequirementError` if there is none: then no machine can be started.
    """
    image = current_image(client, clone, "machine")
    if image is None:
        raise MissingRequirementError(
            "there is no image of this clone's present sources", "make lab-up"
        )
    return image


@engine_errors_as_lab_errors()
def open_container_machine(
    topology: Topology,
    *,
    leased: bool = True,
    on_step: Callable[[str], None] = lambda _: None,
    on_boot: Callable[[Booting], None] = lambda _: None,
) -> ContainerMachine:
    """Attaches to the machine of the clone's running lab, or starts a throwaway container.

    leased: wait until no other process has a lease of the lab's machine, and hold a lease until the
        machine is stopped. Throwaway containers need no lease.
    on_step: gets the current step, for progress displays.
    on_boot: gets the throwaway container while it boots.

    Raises `MissingRequirementError` if there is no engine or no image, `LabError` if the machine
    can't be proved.
    """
    check_versions(topology)
    clone = find_clone()
    client = connect()
    sweep_abandoned(client, clone)
    image = require_image(client, clone)
    container = find_machines(client, clone).get(topology.name)
    if container is None or not serves_topology(container, topology):
        on_step("starting a container of its own")
        kvm = kvm_works(client, image)
        container = start_throwaway(client, clone, topology, image, kvm)
        try:
            stop = engine_errors_as_lab_errors()(partial(remove_container, container))
            on_boot(Booting("kvm" if kvm else "tcg", stop))
            wait_until_proved(container)
            return ContainerMachine(client, topology, container, owned=True)
        except BaseException:
            remove_container(container)
            raise
    if not is_from_image(container, client, image):
        raise LabError(
            f"container {container.name} runs older sources than this clone's: run `make lab-up`"
        )
    lease = Lease.for_lab_machine(clone, topology.name, on_step) if leased else None
    on_step("attaching to the running lab")
    try:
        if has_ended(container):  # an earlier user has reported its death
            container.start()
        elif is_without_power(container):  # by a process killed before it switched on again
            container.restart(timeout=0)
        wait_until_proved(container)
        machine = ContainerMachine(client, topology, container, owned=False, lease=lease)
        if leased:
            machine.prove()  # other processes have used it since its proof
        return machine
    except BaseException:
        if lease is not None:
            lease.end()
        raise


class ContainerMachine(LinkedMachine):
    """A machine in a container that has passed its proof.

    owned: whether `stop` removes the container. A container of a running lab stays.

    Commands in the machine end when this process does. `_lock` guards `_last_uptime`.
    """

    kind: Literal["container"] = "container"
    python = _PYTHON

    def __init__(
        self,
        client: docker.DockerClient,
        topology: Topology,
        container: Container,
        owned: bool,
        lease: Lease | None = None,
    ) -> None:
        """Raises `MissingRequirementError` if there is no `docker` command."""
        self.topology = topology
        self._client = client
        self._container = container
        self._owned = owned
        self._lease = lease
        self._proof = read_proof(container)
        self.accelerator: Accelerator = self._proof.accelerator
        self._lock = threading.Lock()
        self._last_uptime = self._new_uptime()
        self._attached = ExitStack()
        self._link = self._attached.enter_context(container_link(container))

    def _uptime(self) -> Uptime:
        with self._lock:
            return self._last_uptime

    def _link_for(self, _: Sequence[str]) -> Link:
        return self._link

    def _environment(self, env: Mapping[str, str]) -> dict[str, str]:
        return dict(env)  # the container adds the other variables

    def facts(self) -> Mapping[str, object]:
        return self._proof.facts

    def prove(self) -> None:
        facts = read_facts(self)
        self._proof = replace(self._proof, facts=facts, proved=prove(self.topology, facts))

    @engine_errors_as_lab_errors()
    def power_cut(self) -> None:
        uptime = self._uptime()
        uptime.end(POWER_CUT)
        if uptime.end_reason == POWER_CUT and not has_ended(self._container):
            # Asks the process in the container that serves the guest: it has the guest's media.
            self._link.switch_power(agent.POWER_CUT)

    @engine_errors_as_lab_errors()
    def power_on(self) -> None:
        with self._lock:
            self._last_uptime.check_ended()
            self._last_uptime = uptime = self._new_uptime()
        try:
            self._link.switch_power(agent.POWER_ON)
            self._proof = read_proof(self._container)
        except BaseException as error:
            uptime.end(f"did not come up: {error}")
            raise

    @engine_errors_as_lab_errors()
    def stop(self) -> None:
        uptime = self._uptime()
        has_no_power = uptime.end_reason not in ("", STOPPED)
        uptime.end(STOPPED)
        self._attached.close()
        if self._owned:
            remove_container(self._container)
        elif has_no_power:
            # Leaves the lab as it was found, on new media, after a moment.
            self._container.restart(timeout=0)
        if self._lease is not None:
            self._lease.end()
        self._client.close()

    def _new_uptime(self) -> Uptime:
        return Uptime(f"container {self._container.name}")
