"""Emulated machines with persistent memory, proved to have it, and scenarios that run on them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pmemlab.errors import (
        CommandTimeoutError,
        LabError,
        MachineDiedError,
        MissingRequirementError,
        ProofError,
        TopologyError,
    )
    from pmemlab.machines.opening import open_machine
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

_MODULES = ("errors", "topology", "machines.protocol", "machines.opening")


def __getattr__(name: str) -> object:
    """Imports a public name on its first use, so that importing the package needs no extras."""
    if name in __all__:
        for module in _MODULES:
            found = vars(import_module(f"{__name__}.{module}"))
            if name in found.get("__all__", ()):
                globals()[name] = found[name]
                return found[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
