"""The interface of a Wide & Deep network, whatever library computes its dense layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pmemlab.workloads.batches import Batch
from pmemlab.workloads.run import LookupClock
from pmemlab.workloads.wide_and_deep import DenseLibrary
from pmemlab.workloads.wide_and_deep.tables import EmbeddingTables, ModelOptions


class Network(Protocol):
    """A Wide & Deep network. Two of the same class, options and batches give the same bits."""

    @property
    def lookup_clock(self) -> LookupClock: ...

    def train(self, batch: Batch) -> float:
        """Train rows and dense layers on one batch; return its loss before the update."""

    def predict(self, batch: Batch) -> NDArray[np.float32]:
        """Return the chance of a click, float32 (n,); trains nothing."""

    def state(self) -> dict[str, NDArray[np.float32]]:
        """Return the dense parameters and the sums of their squared gradients, by name, not copied.

        "parameter_0" and "parameter_1" are the linear part's weight (1, 13) and bias (1,). Weight
        (outputs, inputs) and bias (outputs,) of each deep layer follow; sums likewise.
        """

    def load_state(self, state: Mapping[str, NDArray[np.float32]]) -> None:
        """Load parameters and sums that `state` returned, for a network of the same options.

        Raises ValueError, which names an array that is missing, unknown or of another shape;
        nothing has changed then.
        """


def make_network(dense: DenseLibrary, tables: EmbeddingTables, options: ModelOptions) -> Network:
    """Make a network over these tables. Imports PyTorch only if it's needed."""
    if dense == "torch":
        from pmemlab.workloads.wide_and_deep.torch_network import TorchNetwork

        return TorchNetwork(tables, options)
    from pmemlab.workloads.wide_and_deep.numpy_network import NumpyNetwork

    return NumpyNetwork(tables, options)


def by_name(
    parameters: list[NDArray[np.float32]], sums: list[NDArray[np.float32]]
) -> dict[str, NDArray[np.float32]]:
    """Return a network's state by name (see `Network.state`)."""
    return {
        f"{kind}_{number}": array
        for kind, arrays in (("parameter", parameters), ("sum", sums))
        for number, array in enumerate(arrays)
    }


def copy_state(
    state: Mapping[str, NDArray[np.float32]], into: Mapping[str, NDArray[np.float32]]
) -> None:
    """Copy a state into a network's arrays (see `Network.load_state`)."""
    for name in into.keys() ^ state.keys():
        raise ValueError(f"{name} is in {'the file' if name in state else 'the model'} alone")
    for name, array in into.items():
        if state[name].shape != array.shape:
            raise ValueError(
                f"{name} has shape {state[name].shape}, and {array.shape} in the model"
            )
    for name, array in into.items():
        array[...] = state[name]
