"""Makes compose.yaml and docker/compose.kvm.yaml from the topologies.

`pmemlab lab compose --write` writes both files. Throwaway containers and containers of a user's own
topologies are made from the same text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import yaml

from pmemlab.errors import LabError, MissingRequirementError
from pmemlab.machines.capacity import machine_bytes
from pmemlab.machines.container.clone import Clone
from pmemlab.machines.container.user_topology import is_lab_topology, path_in_container
from pmemlab.topology import Requirements, Topology, load_topology, topology_names

__all__ = [
    "check_current",
    "check_versions",
    "compose_files",
    "default_machines",
    "service",
    "write_compose_files",
]

_MIB = 1 << 20

_HEAD: Final = """\
# Made from lab/pmemlab/topologies by `pmemlab lab compose --write`: change those, not this file.
#
# The lab: a service for each machine. A service runs one emulated machine, and is healthy when
# the machine has passed its proof. `make lab-up` builds the image, starts the services a few at
# a time and prints the proved facts; `make lab-down` removes everything. A topology with
# `on_demand: true` starts only if it is named (`make lab-up ARGS=sata`), or for a scenario: all
# machines together would take more memory than most computers have.
#
# `make lab-up` sets COMPOSE_PROJECT_NAME and PMEMLAB_IMAGE, so that the labs of two clones
# don't clash.

x-machine: &machine
  image: ${PMEMLAB_IMAGE:-pmemlab-machine}
  # QEMU emulates in user space, and all files that a machine reads belong to root: no
  # capability is needed. docker/README.md says how that was tested.
  cap_drop: [ALL]
  security_opt: ["no-new-privileges:true"]
  # Commands come in by `docker exec`, and results go out on its streams.
  network_mode: none
  restart: "no"
  stop_grace_period: 10s
  pids_limit: 256
  # The media of a machine's DIMMs lie here, so they count as the service's memory.
  tmpfs: ["/run/pmemlab:mode=0700"]
  healthcheck:
    # Each check costs the engine a tenth of a second: those of nine machines took a sixth of a
    # processor. So every check after the first that found the proof lasts most of a minute, since
    # Compose v1 has no start_interval.
    test:
      - CMD-SHELL
      - >-
        cd /run/pmemlab && test -s proof.json &&
        { ! test seen -nt proof.json || sleep 50; } && touch seen
    interval: 1s
    timeout: 60s
    # A machine gets two minutes; one that ends by itself is seen as ended at once.
    retries: 110

x-labels: &labels
  pmemlab.clone: ${COMPOSE_PROJECT_NAME:-pmemlab}

# A service's mem_limit is its machine's memory, DIMMs and disk, and 430 MiB: 256 for the code that
# QEMU translates, the rest for QEMU, `pmemlab machine serve` and attached clients.
services:
"""
_SERVICE: Final = """\
  %(name)s:
    <<: *machine
    mem_limit: %(mebibytes)dm
    command: [machine, serve, %(topology)s, --state-dir, /run/pmemlab]
    labels: {<<: *labels, pmemlab.machine: %(name)s}
"""
_KVM_HEAD: Final = """\
# Made from lab/pmemlab/topologies by `pmemlab lab compose --write`: change those, not this file.
#
# Used beside compose.yaml if a guest has booted on KVM, which `make lab-up` finds out by itself.

x-machine: &machine
  devices: [/dev/kvm]

services:
"""


def compose_files() -> Mapping[str, str]:
    """Returns path in the clone -> text for each Compose file made from the topologies."""
    topologies = _topologies()
    names = "".join(f"  {topology.name}: *machine\n" for topology in topologies)
    return {
        Clone.COMPOSE_FILE: _compose_text(topologies),
        Clone.KVM_OVERRIDE: _KVM_HEAD + names,
    }


def write_compose_files(clone: Clone) -> None:
    for name, text in compose_files().items():
        (clone.root / name).write_text(text, encoding="utf-8")


def check_current(clone: Clone) -> None:
    """Raises `LabError` if a Compose file of the clone does not match the topologies."""
    stale = [
        name
        for name, text in compose_files().items()
        if (clone.root / name).read_text(encoding="utf-8") != text
    ]
    if stale:
        raise LabError(
            f"{' and '.join(stale)}: not what lab/pmemlab/topologies say; "
            "run `pmemlab lab compose --write`"
        )


def default_machines() -> list[str]:
    """Returns the names of the lab's own topologies that `pmemlab lab up` starts by default."""
    return [topology.name for topology in _topologies() if not topology.on_demand]


def service(topology: Topology) -> dict[str, Any]:
    """Returns the topology's service as compose.yaml has it, or would have it."""
    services = yaml.safe_load(_compose_text([topology]))["services"]
    return dict(services[topology.name])


def check_versions(topology: Topology) -> None:
    """Raises `MissingRequirementError` if the image's QEMU and kernel may be too old."""
    if topology.requires != Requirements():
        raise MissingRequirementError(
            f"machine {topology.name} wants a newer QEMU or kernel than the image's, which are its "
            "distribution's own",
            "take --pmemlab-machine guest, with a QEMU and a kernel that are new enough",
        )


def _topologies() -> list[Topology]:
    """Returns the lab's own topologies that the image's QEMU and kernel are new enough for."""
    topologies = map(load_topology, topology_names())
    return [topology for topology in topologies if topology.requires == Requirements()]


def _compose_text(topologies: Iterable[Topology]) -> str:
    return _HEAD + "\n".join(map(_service_text, topologies))


def _service_text(topology: Topology) -> str:
    is_from_lab = is_lab_topology(topology)
    return _SERVICE % {
        "name": _scalar(topology.name),
        "mebibytes": -(-machine_bytes(topology) // _MIB),
        "topology": _scalar(topology.name if is_from_lab else path_in_container(topology)),
    }


def _scalar(text: str) -> str:
    """Returns a text as YAML, in quotes if YAML would read it as anything but this text."""
    is_plain = re.fullmatch(r"[A-Za-z0-9_/.-]+", text) and yaml.safe_load(text) == text
    return text if is_plain else json.dumps(text)
