"""Emulated machines with persistent memory, proved to have it, and scenarios that run on them."""

from pmemlab.errors import (
    CommandTimeoutError,
    LabError,
    MachineDiedError,
    MissingRequirementError,
    ProofError,
    TopologyError,
)
from pmemlab.machines import open_machine
from pmemlab.machines.protocol import Kind, Machine, Result
from pmemlab.topology import Topology, load_topology, topology_names

__all__ = [
    "CommandTimeoutError",
    "Kind",
    "LabError",
    "Machine",
    "MachineDiedError",
    "MissingRequirementError",
    "ProofError",
    "Result",
    "Topology",
    "TopologyError",
    "load_topology",
    "open_machine",
    "topology_names",
]
